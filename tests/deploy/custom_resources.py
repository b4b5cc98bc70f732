"""Schemas of the custom resources that deploy/ uses: as much of them as is used, and nothing else is let pass."""

from typing import Any

Schema = dict[str, Any]


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}
_METADATA = _object({"name": _TEXT, "namespace": _TEXT}, {"labels": _TEXTS, "annotations": _TEXTS})

SERVICE_MONITOR = _object(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "selector": _object({"matchLabels": _TEXTS}),
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object(
                        {"port": _TEXT},
                        {
                            "path": {"type": "string", "pattern": "^/"},
                            "scheme": {"enum": ["http", "https"]},
                            "interval": _DURATION,
                            "scrapeTimeout": _DURATION,
                        },
                    ),
                },
            },
            {"jobLabel": _TEXT},
        ),
    }
)

_RULE: Schema = {
    "oneOf": [
        _object({"record": {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"}, "expr": _TEXT}),
        _object({"alert": _TEXT, "expr": _TEXT, "labels": _TEXTS, "annotations": _TEXTS}, {"for": _DURATION}),
    ]
}

PROMETHEUS_RULE = _object(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "PrometheusRule"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "groups": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object(
                        {"name": _TEXT, "rules": {"type": "array", "minItems": 1, "items": _RULE}},
                        {"interval": _DURATION},
                    ),
                }
            }
        ),
    }
)

SCHEMAS: dict[str, Schema] = {"ServiceMonitor": SERVICE_MONITOR, "PrometheusRule": PROMETHEUS_RULE}
"""By kind."""
