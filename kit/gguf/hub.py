"""Files of the Hugging Face Hub, which huggingface_hub downloads into its cache: HF_TOKEN and HF_HUB_OFFLINE=1 apply."""

import re
from pathlib import Path

from kit.errors import GGUFError
from kit.gguf.parts import part_names
from kit.gguf.reachable import reachable

_NAME = re.compile(r"hf://(?P<owner>[\w.-]+)/(?P<repo>[\w.-]+)(?:@(?P<revision>[^/]+))?/(?P<file>.+)", re.ASCII)


def of_hub(source: str) -> tuple[str, str | None, list[str]]:
    """(owner/repo, revision, files: all parts) of ``hf://owner/repo[@revision]/file.gguf``; GGUFError for another form."""
    match = _NAME.fullmatch(source)
    if not match:
        raise GGUFError(f"{source}: expected hf://owner/repo/file.gguf or hf://owner/repo@revision/file.gguf")
    folder, _, name = match["file"].rpartition("/")
    names = [f"{folder}/{part}".lstrip("/") for part in part_names(name)]
    return f"{match['owner']}/{match['repo']}", match["revision"], names


def downloaded(source: str) -> Path:
    """The local file of an hf:// name, of a split model the first part; GGUFError in one line says why there is none.

    A Hub that cannot be reached is noticed in two seconds, and the cache is used; huggingface_hub tries for half a minute.
    """
    from huggingface_hub import constants, errors, hf_hub_download

    repo, revision, names = of_hub(source)
    alone = constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT)
    paths = []
    for name in names:
        try:
            paths.append(Path(hf_hub_download(repo, name, revision=revision, local_files_only=alone)))
        except (errors.HfHubHTTPError, OSError, ValueError) as error:  # ValueError: an invalid repository or file name
            raise hub_error(error, source, repo, name, revision) from error
    return paths[0]


def hub_error(error: Exception, source: str, repo: str, name: str, revision: str | None) -> GGUFError:
    """What an error of huggingface_hub means, with what to do."""
    from huggingface_hub import constants, errors

    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
    problems = {  # the first class that fits: GatedRepoError is a RepositoryNotFoundError
        errors.GatedRepoError: f"{repo} is gated: accept its license on huggingface.co and set HF_TOKEN",
        errors.RepositoryNotFoundError: f"there is no repository {repo}, or it is private: set HF_TOKEN",
        errors.RevisionNotFoundError: f"{repo} has no revision {revision!r}",
        errors.LocalEntryNotFoundError: f"not in the cache {constants.HF_HUB_CACHE}, and {offline}",
        errors.EntryNotFoundError: f"{repo} has no file {name!r}",
    }
    known = next((text for kind, text in problems.items() if isinstance(error, kind)), None)
    return GGUFError(f"{source}: {known or ' '.join(str(error).split())}")


def cached(source: str) -> Path | None:
    """The file of an hf:// name in the Hub's cache, of a split model the first part where all are there; None: not whole."""
    from huggingface_hub import try_to_load_from_cache

    repo, revision, names = of_hub(source)
    try:
        paths = [try_to_load_from_cache(repo, name, revision=revision) for name in names]
    except ValueError as error:  # an invalid repository or file name
        raise GGUFError(f"{source}: {' '.join(str(error).split())}") from None
    return Path(paths[0]) if all(isinstance(path, str) for path in paths) else None
