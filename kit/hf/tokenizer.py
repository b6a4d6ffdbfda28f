"""The tokenizer of a file for transformers: the kit's own, which opens fast and gives llama.cpp's ids."""

import transformers
from tokenizers import AddedToken
from transformers.integrations.gguf import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

from kit.errors import ModelError, NoTokenizer, TokenizerError
from kit.gguf.keys import Keys
from kit.gguf.metadata import MetadataArray
from kit.model.special_tokens import NAMES, PREFIX, named
from kit.model.tokenizer import Tokenizer
from kit.model.tokenizer import tokenizer_of as own_tokenizer_of


def tokenizer_of(file) -> transformers.PreTrainedTokenizerBase | None:
    """The kit's tokenizer, or that of transformers for a kind that the kit lacks; None for a file without a vocabulary."""
    if Keys(file, PREFIX, TokenizerError).text("model", "none") in ("none", "no_vocab"):
        return None
    try:
        own = own_tokenizer_of(file)
    except NoTokenizer:
        return _of_transformers(file)
    return GGUFTokenizer(own, **_settings(file))


def _settings(file):
    return named(file) | {"chat_template": Keys(file, "tokenizer.", TokenizerError).text("chat_template", None)}


def _of_transformers(file):
    keys = {f"tokenizer.{key}": name for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()}
    given = {keys[key]: value for key, value in file.metadata.items() if key in keys}
    parts = {name: value.tolist() if isinstance(value, MetadataArray) else value for name, value in given.items()}
    kind = file.metadata["tokenizer.ggml.model"]
    try:
        backend, _ = convert_gguf_tokenizer(file.architecture, parts)
    except Exception as error:  # of any kind where the file's lists are not what transformers expects
        reason = f"{file.path}: neither the kit nor transformers has the tokenizer {kind!r} of {file.architecture!r} ({error})"
        alone = "the model alone: kit.hf.model_over(kit.hf.Source.of(kit.open(path)))"
        raise TokenizerError(f"{reason}; {alone}, and give the prompt as token ids") from None
    flag = Keys(file, PREFIX, TokenizerError).flag
    adds = {f"add_{name}_token": flag(f"add_{name}_token", False) for name in ("bos", "eos")}
    settings = adds | _settings(file)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


class GGUFTokenizer(transformers.PreTrainedTokenizer):
    """A tokenizer of the kit behind transformers' interface: calls, batches, padding, chat templates."""

    model_input_names = ("input_ids", "attention_mask")

    def __init__(self, own: Tokenizer, **settings):
        self.own = own
        ids = {own.token(settings[name]): settings[name] for name in NAMES if name in settings}
        known = {token: AddedToken(text, special=True, normalized=False) for token, text in ids.items() if token is not None}
        super().__init__(padding_side="left", added_tokens_decoder=known, **settings)

    @property
    def vocab_size(self) -> int:
        return len(self.own)

    def get_vocab(self) -> dict[str, int]:
        return {self.own.text(token): token for token in range(len(self.own))} | self._added_tokens_encoder

    def _add_tokens(self, new_tokens, special_tokens=False):
        return super()._add_tokens(new_tokens, special_tokens) if new_tokens else 0  # theirs builds the whole vocabulary

    def tokenize(self, text, split_special_tokens=False, **_) -> list[str]:
        """The texts of the tokens, without begin and end tokens."""
        return [self.own.text(token) for token in self.own.encode(text, not split_special_tokens, ends=False)]

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None) -> list[int]:
        return self.own.framed([*token_ids_0, *(token_ids_1 or ())])

    def _convert_token_to_id(self, token):
        number = self.own.token(token)
        return self.own.unknown if number is None else number

    def _convert_id_to_token(self, index):
        return self.own.text(index)

    def _decode(self, token_ids, skip_special_tokens=False, **_):
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self.own.decode(ids, special=not skip_special_tokens)

    def save_vocabulary(self, save_directory, filename_prefix=None):
        raise ModelError(f"{self.own.path}: the vocabulary is part of the GGUF file and is not saved separately; keep the file")
