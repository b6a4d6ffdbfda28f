"""Short texts by which an acceptance is measured: code that is edited, prose, and a chat. They are the project's own."""

from kit.errors import ModelError
from kit.lab.chat import chat

CODE = '''def mean(values):
    """The mean of some numbers; ValueError for none."""
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)


def variance(values):
    """The variance of some numbers; ValueError for none."""
    if not values:
        raise ValueError("no values")
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / len(values)


def median(values):
    """The median of some numbers; ValueError for none."""
'''
PROSE = """The harbour woke slowly. Fog lay over the quay, and the masts of the smaller boats rose out of it like a wood in
winter. An old man came down from the town with a basket on his arm, sat down on a bollard, and began to repair a net that was
older than he was. Nobody had asked him to, and nobody would sail with it again. When the bell of the church struck seven, the
fog rose, and"""
CHAT = "Why is the sky blue in the day and red in the evening? Answer in three sentences."
EDIT = f"Rename `values` to `numbers` in this Python file. Answer with the whole file and nothing else.\n\n```python\n{CODE}```"
PASSAGES = {"code": CODE, "prose": PROSE, "chat": CHAT}
ASKED = {"chat": CHAT, "edit": EDIT}  # by the template of a chat; edit: its answer repeats most of the question


def ids_of(model, name: str) -> list[int]:
    """Token ids of a passage, or of "edit", for a model; a chat by the template of its file, or as text where it has none."""
    if name in ASKED:
        try:
            return chat(model.file, model.tokenizer, [{"role": "user", "content": ASKED[name]}])
        except ModelError:
            pass
    return model.tokenizer.encode((PASSAGES | ASKED)[name])
