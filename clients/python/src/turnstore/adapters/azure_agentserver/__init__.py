"""turnstore as the store of an Azure AI AgentServer host (extra `azure-agentserver`).

    from azure.ai.agentserver.responses import ResponsesAgentServerHost
    from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

    app = ResponsesAgentServerHost(store=TurnstoreResponseProvider("127.0.0.1:50051", namespace="my-agent"))

What changes for the host: a turn that failed stays readable (the response and its input items), but is not
part of the history that later turns are given, in a conversation and through `previous_response_id`. So one
request that a model service refuses no longer spoils every request after it. Several hosts may share one
service, and a resilient background response is recovered by whichever host starts next.

How calls are mapped:

- The key of the end user (`x-agent-user-id`) is the user of the scope; without it, the anonymous partition.
- A host hands over lists of item ids instead of naming the parent. The provider remembers which response gave
  a list and stores the parent, so that what is stored of a turn does not grow with the conversation. Only a
  list of unknown origin is stored as it is.
- The provider sends the revision of a response that it saw last along with an update. So an update that knows
  what it replaces may change a finished response, and a late one that does not is refused.
- Failures are the exceptions that the host knows: `KeyError` and `ValueError` for what is not there,
  `ResponseAlreadyExistsError`, `FoundryBadRequestError` for a request that cannot be taken, `FoundryApiError`
  for everything else. The last two carry the host's platform-error tag and have the client's exception as
  their cause.

A handler that ends without a terminal event leaves its response in progress for ever. Let the service run
with `TURNSTORE_ABANDON_AFTER` set, longer than any turn takes: such a response then counts as failed.
"""

try:
    from turnstore.adapters.azure_agentserver.provider import TurnstoreResponseProvider
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "azure":
        raise
    raise ImportError(
        "azure-ai-agentserver-responses is not installed: pip install 'turnstore[azure-agentserver]'"
    ) from missing

__all__ = ["TurnstoreResponseProvider"]
