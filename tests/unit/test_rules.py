"""The rules by themselves: what only the model compares elsewhere, and that a window answers like the whole line."""

from hypothesis import given, settings
from hypothesis import strategies as st

from turnstore_service.replay.rules import cut, explain, look_behind, reach, settled, sift
from turnstore_service.replay.values import (
    MODEL_SAFE,
    Answer,
    Head,
    LimitCut,
    LimitUnit,
    Policy,
    Question,
    Reason,
    Status,
    Text,
    ToolItems,
    Turn,
    TurnRule,
)


def _turn(number: int, status: Status = Status.COMPLETED, **parts: object) -> Turn:
    return Turn(f"key{number}", f"r{number}", status, **parts)  # type: ignore[arg-type]


def _answer(turns: list[Turn], question: Question) -> Answer:
    return cut(sift(turns, question, {}), question)


def _ids(answer: Answer) -> list[str]:
    return [entry.head.id for entry in answer.entries]


def _message(item_id: str) -> Head:
    return Head(item_id, "message")


def test_a_failed_turn_contributes_nothing_under_any_policy() -> None:
    turns = [
        _turn(1, input=[_message("u1")]),
        _turn(2, Status.FAILED, input=[_message("u2")], output=[_message("a2")]),
    ]
    for policy in (Policy(), MODEL_SAFE):
        assert _ids(_answer(turns, Question(policy))) == ["u1"]


def test_a_limit_counts_what_is_left_after_exclusion() -> None:
    turns = [
        _turn(1, input=[_message("u1")]),
        _turn(2, Status.FAILED, input=[_message("u2")]),
        _turn(3, excluded=True, input=[_message("u3")]),
    ]
    answer = _answer(turns, Question(limit=1))
    assert (_ids(answer), answer.truncated) == (["u1"], False)


def test_a_unit_is_torn_by_what_comes_before_its_output_too() -> None:
    turns = [
        _turn(
            1,
            output=[
                Head("f", "function_call", "k"),
                Head("x", "message"),
                Head("rs", "reasoning"),
                Head("o", "function_call_output", "k"),
                Head("a", "message"),
            ],
        )
    ]
    question = Question(Policy(limit_cut=LimitCut.WHOLE), limit=4)
    answer = _answer(turns, question)
    assert _ids(answer) == ["x", "a"]
    assert {entry.head.id for entry in answer.sifted if entry.reason is Reason.SPLIT_UNIT} == {"rs", "o"}


def test_explain_groups_by_turn_and_reason_in_order() -> None:
    turns = [
        _turn(1, Status.FAILED, input=[_message("u1"), _message("u2")]),
        _turn(
            2, Status.CANCELLED, output=[Head("e", "message", text=Text.NOTHING), Head("f", "x_call", "k")]
        ),
        _turn(3, deleted=True),
    ]
    question = Question(MODEL_SAFE)
    told = [(one.response_id, one.reason, one.item_ids) for one in explain(turns, _answer(turns, question))]
    assert told == [
        ("r1", Reason.FAILED, ("u1", "u2")),
        ("r2", Reason.EMPTY_CONTENT, ("e",)),
        ("r2", Reason.UNPAIRED_CALL, ("f",)),
        ("r3", Reason.DELETED, ()),
    ]


# A window with look-ups against the whole line

_KINDS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "computer_call",
    "computer_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
)


@st.composite
def _lines(draw: st.DrawFn) -> list[Turn]:
    turns = []
    seen: dict[str, int] = {}
    for number in range(draw(st.integers(1, 8))):
        parts: dict[str, list[Head]] = {"input": [], "output": []}
        for heads in parts.values():
            for _ in range(draw(st.integers(0, 3))):
                item_id = f"i{draw(st.integers(0, 14))}"
                kind = draw(st.sampled_from(_KINDS))
                call = "" if kind in {"message", "reasoning"} else draw(st.sampled_from(("", "k1", "k2")))
                text = draw(st.sampled_from(Text)) if kind == "message" else Text.WHOLE
                heads.append(Head(item_id, kind, item_id if kind == "mcp_approval_request" else call, text))
        for heads in parts.values():
            for head in heads:
                seen[head.id] = seen.get(head.id, 0) + 1
        turns.append((number, draw(st.sampled_from(Status)), parts))
    # The store marks an id at every holder once a second one comes.
    repeated = {item_id for item_id, times in seen.items() if times > 1}
    return [_turn(number, status, repeated=frozenset(repeated), **parts) for number, status, parts in turns]


_QUESTIONS = st.builds(
    Question,
    st.builds(
        Policy,
        st.sampled_from(TurnRule),
        st.sampled_from(TurnRule),
        st.sampled_from((TurnRule.INCLUDE, TurnRule.EXCLUDE)),
        st.sampled_from(ToolItems),
        st.sampled_from(LimitCut),
    ),
    st.integers(0, 8),
    st.sampled_from(LimitUnit),
    st.sampled_from((frozenset(), frozenset({"k1"}), frozenset({"k2", "i3"}))),
)


def _through_a_window(line: list[Turn], question: Question) -> Answer:
    """Reads a line from its end, as the service does: a window, and the turns that the rules ask for."""
    size = 1
    ids: set[str] = set()
    keys: set[str] = set()
    while True:
        window = line[-size:]
        behind = line[:-size]
        while True:
            older = [
                turn
                for turn in behind
                if any(head.id in ids or head.call in keys for head in (*turn.input, *turn.output))
            ]
            turns = older + window
            sifted = sift(turns, question, {})
            more_ids, more_keys = look_behind(
                turns, sifted, question, max(len(older), reach(sifted, question))
            )
            if not behind or (more_ids <= ids and more_keys <= keys):
                break
            ids |= more_ids
            keys |= more_keys
        answer = cut(sifted, question)
        if not behind or settled(answer, len(older)):
            return answer
        size += 1


@settings(max_examples=400, deadline=None)
@given(_lines(), _QUESTIONS)
def test_a_window_with_look_ups_answers_like_the_whole_line(line: list[Turn], question: Question) -> None:
    question = Question(
        question.policy, question.limit, question.unit, question.answered, bool(question.answered)
    )
    whole = _answer(line, question)
    windowed = _through_a_window(line, question)
    assert (_ids(windowed), windowed.truncated) == (_ids(whole), whole.truncated)
