"""The keys ``<architecture>.*`` of a model's file: typed reads, and what becomes of a key that no kind of layer reads."""

import math
import re
from collections.abc import Collection, Sequence

from kit.errors import ModelError
from kit.gguf.keys import REQUIRED, Keys

MAX_LAYERS = 9_999  # a larger number is an error of the file
# A key that a pass does not read is an error, unless it changes no logits: pattern -> why.
CHANGES_NOTHING = {
    "vocab_size": "the embedding has as many rows as there are tokens",
    "tensor_data_layout": "a remark of the first converters",
    "pooling_type": "says how embeddings are made from all positions",
    "classifier.output_labels": "names the outputs of a classifier, which has tensors of its own",
    "decoder_start_token_id": "begins a text, and is the tokenizer's",
    "embedding_length_out": "says how wide the residual is, and other keys do, too",
    "n_deepstack_layers": "is for images",
    r"(vision|audio|mm|image|projector)\..+": "is for images and sounds, which have tensors of their own",
    "use_parallel_residual": "the tensors say it: without ffn_norm, attention and feed-forward layer take one input",
    "skip_loop_final_norm": "is for models whose layers run several times",
    r"attention\.layer_norm(_rms)?_epsilon": "belongs to the other kind of norm",
}


class ModelKeys(Keys):
    """Keys of one architecture; a method takes the part after ``<architecture>.``. A count without a default is at least 1."""

    def __init__(self, file):
        super().__init__(file, f"{file.architecture}.", ModelError)

    def count(self, key: str, default=REQUIRED, least: int = 0, most: int = 2**31 - 1) -> int:
        """An integer from ``least`` to ``most``."""
        return self.whole(key, default, max(least, int(default is REQUIRED)), most, "a count")

    def number(self, key: str, default=REQUIRED, least: float = 0.0, above: float = -math.inf) -> float:
        """A finite number of at least ``least`` that is more than ``above``."""
        return super().number(key, default, least if above < least else -math.inf, above=above)

    def by_layer(self, key: str, layers: int, default: Sequence[int] | None = None, least: int = 1) -> list[int]:
        """A count for each of the first ``layers``: one for all, at least ``least``, or a list for all blocks of the file."""
        if key not in self and default is not None:
            return list(default)
        if not self.is_list(key):
            return [self.whole(key, REQUIRED, least, 2**31 - 1, "a count")] * layers
        blocks = self.count("block_count", most=MAX_LAYERS)
        return self.numbers(key, length=blocks, least=0, most=2**31 - 1, whole=True, what="a count each").tolist()[:layers]

    def local(self, period: int, numbers: Sequence[int]) -> list[bool]:
        """For each layer, whether it has the window: by the file's list of flags, its period, or the family's period."""
        key = "attention.sliding_window_pattern"
        if self.is_list(key) or period < 0:
            blocks = self.count("block_count", most=MAX_LAYERS)
            without = blocks - self.count("nextn_predict_layers", 0)  # as dots3note's converter writes it
            shorter = self.is_list(key) and len(self._metadata[self.prefix + key]) == without
            return self.flags(key, without if shorter else blocks)[: len(numbers)]
        period = self.count(key, period)
        return [period == 0 or layer % period < period - 1 for layer in numbers]

    def same(self, key: str, value: bool | int | float, why: str, or_else: Collection = ()) -> None:
        """An error unless the file lacks the key or has this ``value``, or one of ``or_else``, which mean the same."""
        read = self.flag if isinstance(value, bool) else self.number if isinstance(value, float) else self.count
        if (stated := read(key, value)) not in (value, *or_else):
            self.fail(key, f"{str(value).lower()}, {why}", f"is {str(stated).lower()}")

    def check_all_read(self, of_others: Collection[str]) -> None:
        """An error that names a key which nothing has read and which may change the logits. ``of_others``: patterns of keys
        that only kinds of layers read which the file does not have."""
        nothing = [*CHANGES_NOTHING, *of_others]
        for key in self.unread():
            if not re.fullmatch("|".join(nothing), key):
                raise ModelError(
                    f"{self.path}: the kit does not know what the metadata key {self.prefix + key!r} changes in such a model, "
                    "and ignoring it could give wrong logits; kit explain and kit inspect work on any file"
                )
