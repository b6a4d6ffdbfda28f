"""What a draft gains, from what it costs and how often its tokens are taken (Leviathan et al. 2023, with measured costs)."""

from typing import NamedTuple

_NARROW = 1e-4  # of an acceptance


class Costs(NamedTuple):
    """Seconds. ``verify``: of a pass over 1, 2, ... tokens; the first is a token without a draft. ``draft``: of a drafted
    token; ``catch_up``: of what a draft takes besides; ``read``: of each token after the first that the drafter reads before
    it drafts, of what the model chose: with ``again`` all of it, else a second where the whole draft was accepted. ``back``: of
    taking back the tokens that were not accepted; ``copies``: of a copy of the states, which ``verify`` holds already."""

    verify: tuple[float, ...]
    draft: float = 0.0
    catch_up: float = 0.0
    back: float = 0.0
    copies: float = 0.0
    read: float = 0.0
    again: bool = False

    @property
    def plain(self) -> float:
        """Of a token without a draft."""
        return self.verify[0]

    @property
    def most(self) -> int:
        """The most tokens of a draft whose verification was timed."""
        return len(self.verify) - 1


def tokens_per_pass(chance: float, drafted: int) -> float:
    """Expected tokens that one pass over so many drafted ones gives, each taken with this ``chance`` if all before it were."""
    return sum(chance**n for n in range(drafted + 1))


def speed_up(costs: Costs, chance: float, drafted: int, share: float = 1.0) -> float:
    """Tokens per second with a draft over those without. ``share``: of passes for which there is a draft."""
    tokens, whole = tokens_per_pass(chance, drafted), chance**drafted
    read = tokens if costs.again else 1 + whole
    return gain(costs, tokens, seconds(costs, drafted, 1 - whole, read), share)


def seconds(costs: Costs, drafted: int, refused: float, read: float) -> float:
    """Of a pass over a draft of so many tokens, of which one is ``refused`` that often and before which ``read`` are read."""
    drafting = costs.catch_up + (read - 1) * costs.read + drafted * costs.draft
    return drafting + costs.verify[drafted] + costs.back * refused


def gain(costs: Costs, tokens: float, spent: float, share: float = 1.0) -> float:
    """Tokens per second over those without a draft, where a pass over one gives so many ``tokens`` in ``spent`` seconds."""
    gained = share * tokens + 1 - share
    return gained * costs.plain / (share * spent + (1 - share) * costs.plain)


def break_even(costs: Costs, drafted: int) -> float | None:
    """The acceptance (the chance above) from which a draft gains; None where it loses even if every token is taken."""
    if speed_up(costs, 1.0, drafted) < 1:
        return None
    low, high = 0.0, 1.0
    while high - low > _NARROW:
        middle = (low + high) / 2
        low, high = (low, middle) if speed_up(costs, middle, drafted) >= 1 else (middle, high)
    return high


def best(costs: Costs, chance: float, share: float = 1.0) -> tuple[int, float]:
    """(tokens of the draft that gains most, what it gains); (0, 1.0) where each loses."""
    gains = {drafted: speed_up(costs, chance, drafted, share) for drafted in range(1, costs.most + 1)}
    return max([(0, 1.0), *gains.items()], key=lambda pair: pair[1])
