"""What proposes the tokens of a draft: text that repeats, a smaller model, the MTP head of the file itself, or one
in a file of its own."""

from pathlib import Path

from kit.errors import ModelError
from kit.gguf.uses import bytes_used, head_uses, uses_of
from kit.model.architectures import SIDECARS
from kit.model.drafter import Drafter
from kit.model.hyperparameters import head_config, read_config
from kit.model.kvcache import SequenceCache, state_of
from kit.model.sidecar import Sidecar
from kit.model.transformer import Transformer
from kit.model.weights import Weights

MOST = 8  # tokens of a draft


class Ngrams(Drafter):
    """Text that repeats, also where it is edited: what followed the last tokens where they came before, in the prompt or in the
    answer, with the changes that the answer has made there so far."""

    name, _KEY, _PLACES, _BACK = (
        "ngram",
        2,
        16,
        48,
    )  # tokens by which a place is found; the last places; tokens compared at each
    _SURE, _UNSURE = 8, 2  # tokens in common from which on a place is followed over a change, and all is drafted; else so many

    def __init__(self):
        self.follow(None, None)

    def follow(self, model, cache):
        self._own: list[int] = []  # the sequence
        self._ends: dict[tuple[int, ...], list[int]] = {}  # tokens that lie beside each other -> where they ended
        self._last = None  # how far the place of the last draft lies back

    def propose(self, tokens, count, sampler):
        own = self._own
        if len(tokens) < len(own):  # of another sequence
            self.follow(None, None)
            own = self._own
        known = len(own)
        own += tokens[known:]
        for end in range(max(known, self._KEY), len(own)):  # those before ``end`` are followed by the token there
            self._ends.setdefault(tuple(own[end - self._KEY : end]), []).append(end)
        places = self._places()
        place = max(places, key=lambda end: (places[end][0], end), default=None)
        self._last = place and len(own) - place
        if place is None:
            return [], []
        common, changes = places[place]
        found = [changes.get(token, token) for token in own[place : place + count]]
        while len(found) < count:  # the end of a text that repeats goes on as it began
            found += found[: count - len(found)]
        found = found if common >= self._SURE else found[: self._UNSURE]
        return found, [None] * len(found)

    def _places(self) -> dict[int, tuple[int, dict[int, int]]]:
        """Where the text may repeat -> how many tokens before are in common, and what was changed of them."""
        own = self._own
        ends = self._ends.get(tuple(own[-self._KEY :]), [])[-self._PLACES :]
        places = {end: self._common(end) for end in ends}
        if self._last and (end := len(own) - self._last) not in places:  # a token was just changed
            common, changes = self._common(end)
            if common >= self._SURE:
                places[end] = common, changes
        return places

    def _common(self, end: int) -> tuple[int, dict[int, int]]:
        """Tokens before ``end`` that are those before the end of the sequence, back to the first two in a row that are not, and
        the latest change of each that is not."""
        own, same, gap, changes = self._own, 0, 0, {}
        for n in range(1, min(end, self._BACK) + 1):
            then, now = own[end - n], own[-n]
            if then == now:
                same, gap = same + 1, 0
                continue
            gap += 1
            if gap == 2:
                break
            changes.setdefault(then, now)
        return same, changes


class _Decoding(Drafter):
    """A model that decodes from a cache of its own. ``_again``: what it drafted, it reads again once it is verified."""

    _again = False

    def __init__(self, model):
        self._model, self._cache, self._held, self._mark = model, model.new_cache(), [], None
        self._sure = 0  # tokens that are both held and of the sequence
        self.again = self._again or not self._cache.can_be_cut  # such a state goes back to that before a draft
        self._sizes: set[int] = set()  # of passes that are recorded

    def follow(self, model, cache):
        self._sure = 0

    def propose(self, tokens, count, sampler):
        cache, held = self._cache, self._held
        if len(tokens) + count > cache.context:
            return [], []
        both = min(len(held), len(tokens))
        sure = self._sure if self._sure <= both else 0
        same = next((n for n in range(sure, both) if held[n] != tokens[n]), both)
        same = min(same, len(tokens) - 1)  # the last is always read, for the logits after it
        if same < cache.length:
            if cache.can_be_cut:
                cache.truncate(same)
            elif self._mark and self._mark[0] <= same:
                cache.back_to(self._mark)
            else:
                cache.truncate(0)
        held[same:], self._sure = tokens[same:], len(tokens)
        rest = list(tokens[cache.length :])
        self.read = len(rest)
        few = 1 < len(rest) <= MOST + 1 and cache.length > 0  # by a recorded pass
        logits = self._model.verify(rest, cache).logits[-1] if few else self._model.step(rest, cache)
        self._mark = None if cache.can_be_cut else cache.mark()
        sizes = {len(rest) if few else len(rest) == 1, count > 1}  # 1 and True: of one token; a prompt, 0, is read once
        self.settled = sizes <= self._sizes | {0} and (few or len(rest) == 1)
        self._sizes |= sizes
        drafted, chances = [], []
        while True:
            chance = None if sampler.temperature == 0 else sampler.chances(logits)
            token = int(logits.argmax()) if chance is None else sampler.draw(chance)
            drafted.append(token)
            chances.append(chance)
            if len(drafted) == count:
                held += [] if self._again else drafted[:-1]
                return drafted, chances
            logits = self._model.step([token], cache)


class Smaller(_Decoding):
    """Another model with the same vocabulary. ModelError where it is not one for ``model``."""

    def __init__(self, model, draft):
        file = draft if hasattr(draft, "tensors") else Weights(draft).file
        check_pair(model.file, file)
        context = min(model.max_context, read_config(file).context)
        super().__init__(Transformer(Weights(file), linear="fused-int8", max_context=context))
        self.name, self.nbytes = Path(str(file.path)).name, round(bytes_used(uses_of(file)))


class HeadModel(Transformer):
    """The first MTP head of a file, as a model of one layer, which reads what the model kept of the positions before."""

    reads = staticmethod(head_config)

    def new_cache(self, context=None):
        context = context or self.max_context
        own = state_of(self.config.layers[-1].mixer, context, self.kv_dtype)
        return SequenceCache([own] * len(self.config.layers), context, self.kv_dtype)


class Head(_Decoding):
    """The MTP head of the model's file: one layer after the model's last, whose drafted tokens it reads again with the states
    that the model has found for them. ModelError where the file has none, or one that kit does not run."""

    name, _again = "mtp", True

    def __init__(self, model):
        super().__init__(HeadModel(Weights(model.file), linear="fused-int8", max_context=model.max_context))
        self.nbytes = round(bytes_used(head_uses(model.file)))
        self._turn = None, 0  # what the model kept, and the positions of earlier turns

    def follow(self, model, cache):
        super().follow(model, cache)
        cache.keep_states(model.config.hidden_size)
        turn = cache.kept, cache.length
        if turn[0] is not self._turn[0] or turn[1] != self._turn[1]:
            self._cache.truncate(0)  # it reads the tokens of this turn, with the states that the model has of them
            self._turn, self._held, self._cache.kept = turn, [], cache.kept[cache.length :]


def check_pair(target, draft) -> None:
    """ModelError unless the file ``draft`` can draft for the file ``target``: a smaller model whose tokens are the same."""
    if (known := SIDECARS.get(draft.architecture)) is not None and known != target.architecture:
        why = f"for {known} models, not for {target.architecture!r}" if known else "that kit does not run"
        raise ModelError(f"{draft.path}: a drafter ({draft.architecture}) {why}: give ngram or a smaller model")
    if any("nextn." in name for name in draft.tensors) and "blk.0.attn_norm.weight" not in draft.tensors:
        raise ModelError(f"{draft.path}: an MTP head without its model, which kit does not run")
    size, own = (sum(info.nbytes for info in file.tensors.values()) for file in (target, draft))
    if own >= size:
        raise ModelError(f"{draft.path}: a draft of {own:,} bytes for a model of {size:,} cannot pay: give a smaller one")
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"):
        theirs, mine = (file.metadata.get(key) for file in (target, draft))
        if theirs != mine:
            raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {key} is {mine!r}, there {theirs!r}")
    theirs, mine = (file.metadata.get("tokenizer.ggml.tokens") for file in (target, draft))
    if theirs is None or mine is None:
        sizes = [file.tensors["token_embd.weight"].shape[0] for file in (target, draft)]
        if sizes[0] != sizes[1]:
            raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {sizes[1]} tokens, there {sizes[0]}")
        return
    theirs, mine = list(theirs), list(mine)
    if len(theirs) != len(mine):
        raise ModelError(f"{draft.path}: another vocabulary than {target.path}: {len(mine)} tokens, there {len(theirs)}")
    if theirs != mine:
        n = next(n for n, two in enumerate(zip(theirs, mine, strict=True)) if two[0] != two[1])
        raise ModelError(f"{draft.path}: another vocabulary than {target.path}: token {n} is {mine[n]!r}, there {theirs[n]!r}")


def drafter_of(model, draft, most: int) -> Drafter:
    """The drafter that ``draft`` names: "ngram", "mtp", or a file; a Drafter is itself."""
    if not 1 <= most <= MOST:
        raise ModelError(f"a draft of {most} tokens is not possible: give 1 to {MOST}")
    if isinstance(draft, Drafter):
        return draft
    if draft == "ngram":
        return Ngrams()
    if draft == "mtp":
        return Head(model)
    file = draft if hasattr(draft, "tensors") else Weights(draft).file
    if SIDECARS.get(file.architecture):
        check_pair(model.file, file)
        return Sidecar(model, file)
    return Smaller(model, file)
