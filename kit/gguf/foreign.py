"""What a file is that is no GGUF file, or no language model, and what to do with it: for the one line of an error."""

import os
import re
from urllib.parse import unquote

from kit.errors import ModelError

_CONVERT = "convert the folder of its model by llama.cpp's convert_hf_to_gguf.py"
_UNPACK = "unpack it, then name the GGUF file in it"
_OLD = "llama.cpp left that format in August 2023: download the model as GGUF"
_MODEL, _IMATRIX = "name the model's GGUF file", "name the file of the model that it was made for"
_AGAIN = "download the file itself again, and log in if the source wants it"
KINDS = (  # first bytes -> what it is, what to do
    (rb"\s*(<!doctype html|<html)", "a web page (HTML)", f"its link leads to a page: {_AGAIN}"),
    (rb"\s*<(\?xml|error)", "XML, such as a store answers in place of a file that it does not give", _AGAIN),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull fetches the file"),
    (rb"PK\x03\x04.{26}[^/]+/(data\.pkl|version|byteorder|\.format_version)", "a PyTorch checkpoint", _CONVERT),
    (rb"PK\x03\x04.{26}\w+\.npy", "numpy's arrays (npz)", _MODEL),
    (rb"PK\x03\x04", "a zip archive", _UNPACK),
    (rb"PAR1", "a Parquet table (a data set)", _MODEL),
    (rb"ARROW1|\xff{4}.{4}\x10\x00\x00\x00", "an Arrow table (a data set)", _MODEL),
    (rb"\x93NUMPY", "an array of numpy (npy)", _MODEL),
    (rb"SQLite format 3", "an SQLite database", _MODEL),
    (rb"%PDF", "a PDF", _MODEL),
    (rb"\xff\xd8\xff|\x89PNG|GIF8", "a picture", _MODEL),
    (rb"\x7fELF|MZ.{58}|\xcf\xfa\xed\xfe", "a program or library", _MODEL),
    (rb".{2}\x00\x00.\x00\x00\x00(blk\.|output|token_embd)", "an importance matrix (imatrix)", _IMATRIX),
    (rb"\x08.{0,40}(onnx|pytorch|ir_version)", "an ONNX model", "download the model as GGUF"),
    (rb"\x80[\x02-\x05]", "a pickled PyTorch checkpoint", _CONVERT),
    (rb".{2,4}\x00{4,6}\s*\{\s*[\"}]", "a safetensors file", f"{_CONVERT}; kit compress takes it as it is"),
    (rb"tjgg|lmgg|fmgg", "a model in GGJT, GGML or GGMF", _OLD),
    (rb"algg", "a LoRA adapter in GGLA", _OLD),
    (rb".{4}TFL3", "a TensorFlow Lite model", "download the model as GGUF"),
    (rb"\x1f\x8b", "compressed by gzip", _UNPACK),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", _UNPACK),
    (rb"\xfd7zXZ", "compressed by xz", _UNPACK),
    (rb"BZh", "compressed by bzip2", _UNPACK),
    (rb"7z\xbc\xaf|Rar!", "a 7z or RAR archive", _UNPACK),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"\x89HDF", "an HDF5 file, of Keras say", "download the model as GGUF"),
    (rb"\x00{64}", "zeros: a download that reserved its space and was not finished", _AGAIN),
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LOCAL = re.compile(r"file://(?:localhost)?(/.*)", re.IGNORECASE)
_REPOSITORY = re.compile(
    r"(?:https?://)?(hf\.co/|huggingface\.co/)?([\w.-]+)/([\w.-]+?)(?::([\w.-]+))?/?", re.IGNORECASE | re.ASCII
)
_DOCKER = re.compile(r"(?:\w+://)?(?:docker\.io/)?ai/[\w.-]+(?::[\w.-]+)?", re.ASCII)
_OLLAMA = re.compile(r"[\w.-]+(?:/[\w.-]+)?:[\w.-]+", re.ASCII)
_PORT = re.compile(r"(?:localhost|(?:\d+\.){3}\d+|):\d+", re.ASCII)
PREFIXES = ("ollama", "lmstudio", "jan", "llama.cpp", "hf")  # of names of other programs' models: kit.gguf.stores.STORES
_LIBRARY = "registry.ollama.ai/library/"
_WORD = re.compile(r"[a-zA-Z][\w-]*(?:\.\d[\w-]*)?", re.ASCII)  # llama3, qwen2.5: no file is called so
_AROUND = " \t'\"`\u201c\u201d\u2018\u2019"  # what copying puts around a path
_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+)/([\w.-]+)/(?:resolve|blob|raw)/([^/?#]+)/([^?#]+)")
_IMAGES = {
    "flux", "sd1", "sdxl", "sd3", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2", "qwen_image", "chroma",
}  # fmt: skip
TYPES = {  # general.type -> what the file is, what to do
    "adapter": ("a LoRA adapter", "merge it into its base model by llama.cpp's llama-export-lora, then name the merged file"),
    "mmproj": ("the image or audio part of a model (mmproj)", "name the file of its language model"),
    "imatrix": ("an importance matrix", _IMATRIX),
}
TILES = " tiles"  # ends the type of a compressed matrix: "int8 tiles"
COMPRESSED = (
    "is a compressed model (kit compress): kit generate, perplexity and inspect take it, in Python "
    "kit.codec.CompressedWeights; for everything else name the file that it was made from"
)
NO_WEIGHTS = "holds no weights (a vocabulary alone, perhaps): nothing to run"


def not_gguf(head: bytes) -> str:
    """What a file is that begins with these bytes, and what to do; "not a GGUF file" where they say nothing."""
    for pattern, what, remedy in KINDS:
        if re.match(pattern, head, re.IGNORECASE | re.DOTALL):
            return f"{what}, not a GGUF file; {remedy}"
    start = head[:60].decode(errors="replace").splitlines()[0].strip() if head.strip() else ""
    if len(start) > 3 and start.isprintable() and "\N{REPLACEMENT CHARACTER}" not in start:
        return f"text that begins with {start!r}, not a GGUF file; {_AGAIN}"
    return "not a GGUF file"


def hub_name(path: str) -> str:
    """hf://owner/repo[@revision]/file.gguf for the URL of a file's page or download on the Hub; anything else as it is."""
    if match := _HUB.match(path):
        owner, repo, revision, file = match.groups()
        return f"hf://{owner}/{repo}{'' if revision == 'main' else f'@{revision}'}/{file}"
    return path


def url(path: str) -> str:
    """What to do with a URL that was given for a file; "" for what is none, and for hf://."""
    if path.startswith("hf://") or not _URL.match(path):
        return ""
    if _DOCKER.fullmatch(path):
        return name_of_others(path)
    if match := _LOCAL.match(path):
        return f"is a URL: name the file itself, {unquote(match[1])}"
    if remedy := page(path):
        return remedy
    if hub_name(path) != path:
        return f"is a URL: name it {hub_name(path)}"
    return "is a URL: download it first, then name the file (kit inspect and kit explain read its header)"


def page(path: str) -> str:
    """What to name in place of the URL of a repository's page on the Hub; "" for any other path."""
    match = _REPOSITORY.fullmatch(path)
    return name_of_others(path) if match and match[1] else ""


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def name_of_others(path: str) -> str:
    """What to name in place of a model's name as Docker, Ollama, llama.cpp or the Hub have it; "" for what looks like none."""
    if _DOCKER.fullmatch(path):
        return "is a name as Docker Model Runner has it, not a file: download the model as GGUF and name that file"
    if match := _REPOSITORY.fullmatch(path):
        host, owner, repo, which = match.groups()
        if host or which or repo.lower().endswith(("-gguf", "_gguf")):
            one = f", the one with {which} in its name" if which else ""
            return f"is a repository of the Hub, not a file: name a file of it{one}: hf://{owner}/{repo}/FILE.gguf"
    name = path.removeprefix(_LIBRARY)
    prefix, _, rest = name.partition(":")
    for meant in PREFIXES:
        if rest and _letters(prefix) == _letters(meant):
            return f"names no program; is {meant}:{rest} meant? kit models lists the models of this machine"
    if _PORT.fullmatch(name):
        server = f"http://{'localhost' * (not prefix)}{name}"
        return f"is a host with a port, not a file: kit explain {server} explains the server there"
    if _OLLAMA.fullmatch(name):
        return f"is a name as Ollama has it, not a file: name it ollama:{name}; kit models lists what Ollama has here"
    if name != path or _WORD.fullmatch(path):
        return f"no file has this name; kit models lists the models of this machine, and one of Ollama is called ollama:{name}"
    bare = path.strip(_AROUND)
    return f"no file has this name, but {bare} is one" if bare and os.path.lexists(bare) else ""


def repository(path: str) -> str:
    """The end of a message about a path that does not exist: what to name if it is a repository; "" if it looks like none."""
    match = _REPOSITORY.fullmatch(path)
    if not match or os.path.isdir(match[2]) or not match[2].strip(".") or re.search(r"\.[a-z]\w*$", match[3]):
        return ""  # of a folder that exists, of this one or the one above, or with a file's ending
    return f"; if it is a repository of the Hub, name a file of it: hf://{match[2]}/{match[3]}/FILE.gguf"


def no_language_model(file) -> str:
    """What an open GGUF file holds in place of a language model, and what to do; "" for a language model."""
    kind = file.metadata.get("general.type")
    if any(name.endswith((".lora_a", ".lora_b")) for name in file.tensors):
        kind = "adapter"
    elif file.architecture == "clip":
        kind = "mmproj"
    elif file.architecture in _IMAGES:
        return f"is a model of images or video ({file.architecture}), not a language model; kit inspect and exactness take it"
    elif kind not in TYPES and not any(name.startswith(("blk.", "token_embd.")) for name in file.tensors):
        return "is no language model (it has neither layers blk.N nor token_embd); kit inspect and exactness take it"
    if kind not in TYPES:
        return ""
    what, remedy = TYPES[kind]
    return f"is {what}, not a language model; {remedy}"


def check_blocks(file) -> None:
    """ModelError for a file whose matrices are tiles (kit compress), not blocks."""
    if getattr(file, "compressed", False):
        raise ModelError(f"{file.path}: {COMPRESSED}")


def check_model(file) -> None:
    """ModelError for a file that is no language model in blocks: what check_language_model refuses, and tiles."""
    check_blocks(file)
    check_language_model(file)


def check_language_model(file) -> None:
    """ModelError for a file without weights, an adapter, a model of images and the like: says what it is and what to do."""
    if not any(info.elements for info in file.tensors.values()):
        raise ModelError(f"{file.path}: {NO_WEIGHTS}")
    if told := no_language_model(file):
        raise ModelError(f"{file.path}: {told}")
