"""Held: a transformers cache whose keys and values lie in the kit's own caches, one a row of the batch."""

from collections.abc import Mapping

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from kit.errors import ModelError
from kit.model.kvcache import SequenceCache

CACHE_NAMES = "cache", "past_key_values", "cache_params"  # what arguments and results call it: of 5.24, and before (Mamba's)
CACHE = next(name for name in CACHE_NAMES if name in CausalLMOutputWithPast.__dataclass_fields__)  # of a language model


def cache_of(arguments: Mapping):
    """The cache among the arguments of a model, None without one."""
    return next((arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None), None)


class Held(DynamicCache):
    """A DynamicCache that the kit's own pass fills; ``pads``: hidden columns before each row's first token.

    Reordering and cropping move the kit's caches. Whoever asks for ``layers``, as the modules and most methods do, is given
    tensors (rows, kv_heads, columns, head_dim), and the object is a plain DynamicCache from then on: nothing is held twice.
    """

    is_compileable, is_croppable = False, True
    rows: list[SequenceCache]
    pads: list[int]

    @classmethod
    def over(cls, cache: DynamicCache | None, model, pads: list[int]) -> "Held":
        """A cache without content (None: a new one) becomes one for the rows of a batch by ``model``, a kit.Transformer."""
        cache = DynamicCache() if cache is None else cache
        cache.__class__, cache.model, cache.pads = cls, model, pads
        cache.rows = [model.new_cache() for _ in pads]
        return cache

    @property
    def layers(self):
        self.hand_over()
        return self.layers

    @layers.setter
    def layers(self, value):
        self.__dict__["layers"] = value

    def hand_over(self) -> None:
        """Become what transformers would have made, with the same numbers up to rounding. ModelError where a layer holds a
        fixed state, which transformers' modules keep in another form."""
        if not all(row.can_be_cut for row in self.rows):
            raise ModelError(
                f"{self.model.file.path}: its recurrent layers hold a state of the kit's own, and transformers' modules are "
                "asked for (hidden states, hooks, another cache): begin again without the cache, or load with engine='modules'"
            )
        rows, pads, model = (vars(self).pop(name) for name in ("rows", "pads", "model"))
        self.__class__ = DynamicCache
        for layer, kinds in enumerate(model.config.layers):
            held = [row.read(layer) for row in rows]
            columns = pads[0] + held[0][0].shape[1]
            whole = [part.new_zeros(len(rows), len(part), columns, part.shape[2]) for part in held[0]]
            for row, (pad, parts) in enumerate(zip(pads, held, strict=True)):
                for tensor, part in zip(whole, parts, strict=True):
                    tensor[row, :, pad:] = part
            if rope := kinds.mixer.rope if model.config.family.rope == "interleaved" else None:
                turned = whole[0][..., : rope.dims]  # pairs 2i and 2i + 1 are i and i + dims / 2 in transformers
                turned.copy_(turned.unflatten(-1, (-1, 2)).mT.flatten(-2).clone())
            self.update(*whole, layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.rows[0].length and self.pads[0] + self.rows[0].length

    def __len__(self) -> int:
        return len(self.model.config.layers)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def activate_past_recording(self) -> None:
        """Nothing to do: all positions stay."""

    def crop(self, tokens_to_remove: int) -> None:
        length = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove > 0 or length <= max(self.pads):
            self.hand_over()
            self.crop(tokens_to_remove)
        else:
            for row, pad in zip(self.rows, self.pads, strict=True):
                row.truncate(length - pad)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """The rows ``beam_idx``; one that is asked for again is copied to one that is not."""
        order = beam_idx.tolist()
        free = [row for number, row in enumerate(self.rows) if number not in order]
        first = [number not in order[:place] for place, number in enumerate(order)]
        rows = [self.rows[n] if new else self._copy(n, free) for n, new in zip(order, first, strict=True)]
        self.rows, self.pads = rows, [self.pads[number] for number in order]

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(len(self.rows), dtype=torch.int64, device="cpu").repeat_interleave(repeats))

    def _copy(self, number, free=()):
        copy = free.pop() if free else self.model.new_cache()
        copy.take(self.rows[number])
        return copy

    def __deepcopy__(self, memo):
        copy = Held.over(DynamicCache(), self.model, [])
        copy.pads, copy.rows = self.pads[:], [self._copy(number) for number in range(len(self.rows))]
        return memo.setdefault(id(self), copy)

    def __reduce_ex__(self, protocol):
        self.hand_over()
        return self.__reduce_ex__(protocol)
