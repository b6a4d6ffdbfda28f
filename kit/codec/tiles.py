"""Tiles: an int8 matrix as independently coded rectangles, and its serial form.

One serialized matrix (little endian):

    header       HEADER, 40 bytes
    tables       (tables, 256) uint16: frequencies, each row sums to 4096; one row for all tiles, or one for each
    checksums    (tiles,) uint32: `checksum` of the decoded bytes
    lengths      (tiles,) uint32: bytes of the stream
    streams      at the next multiple of 16; each stream starts at a multiple of 16, READ_AHEAD zero bytes follow the last

Tiles are ordered row by row over the matrix; those at the right and lower edges may be smaller. A stream is `lanes` states
(uint32, lane 0 first), then units of `unit_bits` bits. Value i of a tile belongs to lane i mod lanes. At each step all
lanes advance by one value (32 lanes of a warp, 16 of an AVX-512 register or 8 of an AVX2 register at once), and the lanes
that need a unit take the next ones in lane order. With 16-bit units the last 2 x lanes values are not coded: lane l's
final state holds values 2 l and 2 l + 1 in its low 16 bits, which saves most of the bytes of the states, and 1 above.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kit.errors import CodecError
from kit.gguf.tile_coding import ALIGNMENT, LOWER, MOST, PREDICTORS, SLOT_BITS, SLOTS, Streams

TILE_VALUES = 1 << 16  # values of a tile at most: bounds the memory that a damaged header can ask for
READ_AHEAD = 512  # bytes past the end of a stream that a decoder may read: two steps of 128 lanes
_FIELDS = (
    "magic S4, version <u2, unit_bits u1, slot_bits u1, lanes <u2, predictor u1, reserved u1, rows <u4, columns <u4, "
    "tile_rows <u4, tile_columns <u4, tables <u4, stream_bytes <u8"
)
HEADER = np.dtype([tuple(field.split()) for field in _FIELDS.split(", ")])
MAGIC, VERSION = b"KTIL", 1
LANES = {8: (1,), 16: (16, 32, 64, 128)}  # bits of a unit -> allowed numbers of lanes


def _require(name: str, *facts: tuple[bool, str]) -> None:
    """CodecError for the first fact (condition, problem) whose condition is false."""
    for holds, problem in facts:
        if not holds:
            raise CodecError(f"{name}: {problem}: the tiles are damaged, or another program wrote them")


class Layout(NamedTuple):
    """How a matrix is cut into tiles and coded; see the module's docstring."""

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    lanes: int
    unit_bits: int
    predictor: int  # index into PREDICTORS

    @property
    def grid(self) -> tuple[int, int]:
        """(tiles down, tiles across)."""
        return -(-self.rows // self.tile_rows), -(-self.columns // self.tile_columns)

    @property
    def tail(self) -> int:
        """Values at the end of a tile that the final states hold."""
        return 2 * self.lanes if self.unit_bits == 16 else 0

    def check(self, name: str) -> None:
        """CodecError for a layout that no encoder writes."""
        _require(
            name,
            (self.unit_bits in LANES, f"units of {self.unit_bits} bits"),
            (self.lanes in LANES.get(self.unit_bits, ()), f"{self.lanes} lanes with units of {self.unit_bits} bits"),
            (0 <= self.predictor < len(PREDICTORS), f"predictor number {self.predictor}"),
            (self.rows > 0 and self.columns > 0, f"a shape of {self.rows} x {self.columns}"),
            (0 < self.tile_rows * self.tile_columns <= TILE_VALUES, f"tiles of {self.tile_rows} x {self.tile_columns}"),
        )


@dataclass(frozen=True)
class Tiles:
    """A compressed int8 matrix. ``name`` appears in errors; arrays may be read-only views of a file.

    Everything that compiled decoders rely on is checked here: CodecError.
    """

    layout: Layout
    frequencies: np.ndarray  # (1 or tiles, 256) uint16
    checksums: np.ndarray  # (tiles,) uint32
    lengths: np.ndarray  # (tiles,) uint32, bytes
    streams: np.ndarray  # (bytes,) uint8, READ_AHEAD included
    name: str = field(default="matrix")

    def __post_init__(self):
        self.layout.check(self.name)
        tiles, unit = self.layout.grid[0] * self.layout.grid[1], self.layout.unit_bits // 8
        sums = self.frequencies.sum(axis=1, dtype=np.int64)
        _require(
            self.name,
            (len(self.frequencies) in (1, tiles), f"{len(self.frequencies)} tables for {tiles} tiles"),
            ((sums == SLOTS).all(), f"a table does not sum to {SLOTS}"),
            ((self.frequencies <= MOST).all(), f"a frequency above {MOST}"),
            (self.checksums.size == self.lengths.size == tiles, f"{self.lengths.size} streams for {tiles} tiles"),
            ((self.lengths >= 4 * self.layout.lanes).all(), "a stream shorter than its states"),
            ((self.lengths % unit == 0).all(), "a stream of half a unit"),
            (_aligned(self.lengths).sum() + READ_AHEAD == self.streams.size, "lengths that differ from the streams' bytes"),
        )

    def __len__(self) -> int:
        return self.lengths.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.rows, self.layout.columns

    @property
    def predictor(self) -> str:
        return PREDICTORS[self.layout.predictor]

    @property
    def nbytes(self) -> int:
        """Bytes of the serial form."""
        return _streams_at(len(self.frequencies), len(self)) + self.streams.size

    @cached_property
    def starts(self) -> np.ndarray:
        """First byte of each tile's stream in ``streams``, (tiles,) int64."""
        padded = _aligned(self.lengths)
        return np.cumsum(padded) - padded

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows and columns of each tile, (tiles, 2) int64."""
        down, across = self.layout.grid
        rows = np.minimum(self.layout.tile_rows, self.layout.rows - np.arange(down) * self.layout.tile_rows)
        columns = np.minimum(self.layout.tile_columns, self.layout.columns - np.arange(across) * self.layout.tile_columns)
        return np.stack([np.repeat(rows, across), np.tile(columns, down)], axis=1)

    def error(self, tile: int, reason: str) -> CodecError:
        """A CodecError that names tensor, tile and reason."""
        across = self.layout.grid[1]
        where = f"tile {tile} of {len(self)} (row {tile // across}, column {tile % across} of the grid)"
        return CodecError(f"{self.name}: {where}: {reason}")

    def to_bytes(self) -> bytes:
        """The serial form; see the module's docstring."""
        header = np.zeros((), HEADER)
        for key in Layout._fields:
            header[key] = getattr(self.layout, key)
        header["magic"], header["version"], header["slot_bits"] = MAGIC, VERSION, SLOT_BITS
        header["tables"], header["stream_bytes"] = len(self.frequencies), self.streams.size
        index = b"".join(part.tobytes() for part in (header, self.frequencies, self.checksums, self.lengths))
        return index.ljust(_streams_at(len(self.frequencies), len(self)), b"\0") + self.streams.tobytes()

    @classmethod
    def from_bytes(cls, data, name: str = "matrix") -> "Tiles":
        """Tiles as views of their serial form (any buffer). CodecError when it is malformed."""
        data = np.frombuffer(data, np.uint8)
        _require(name, (data.size >= HEADER.itemsize, f"{data.size} bytes are too few for a header"))
        header = data[: HEADER.itemsize].view(HEADER)[0]
        _require(
            name,
            (bytes(header["magic"]) == MAGIC, f"starts with {bytes(data[:4])!r} where {MAGIC!r} should be"),
            (header["version"] == VERSION, f"version {header['version']}, and this kit reads {VERSION}"),
            (header["slot_bits"] == SLOT_BITS, f"2^{header['slot_bits']} slots where 2^{SLOT_BITS} are known"),
            (header["reserved"] == 0, "a reserved byte is not zero"),
        )
        layout = Layout(*(int(header[key]) for key in Layout._fields))
        layout.check(name)
        tiles, tables = layout.grid[0] * layout.grid[1], int(header["tables"])
        _require(name, (tables in (1, tiles), f"{tables} tables for {tiles} tiles"))
        streams_at, size = _streams_at(tables, tiles), int(header["stream_bytes"])
        _require(name, (data.size == streams_at + size, f"{data.size} bytes do not fit the header's counts"))
        frequencies = data[HEADER.itemsize :][: 512 * tables].view("<u2").reshape(tables, 256)
        index = data[HEADER.itemsize + 512 * tables :][: 8 * tiles].view("<u4").reshape(2, tiles)
        return cls(layout, frequencies, index[0], index[1], data[streams_at:], name)


def _aligned(nbytes):
    """``nbytes`` (number or array) rounded up to ALIGNMENT, int64."""
    return -(-np.int64(nbytes) // ALIGNMENT) * ALIGNMENT


def _streams_at(tables: int, tiles: int) -> int:
    return int(_aligned(HEADER.itemsize + 512 * tables + 8 * tiles))


def streams_of(tiles: Tiles) -> Streams:
    """The streams of `tiles`."""
    unit = tiles.layout.unit_bits // 8
    begin = tiles.starts // unit
    end = begin + tiles.lengths.astype(np.int64) // unit
    values = tiles.sizes.prod(axis=1)
    arrays = (tiles.streams.view(f"u{unit}"), begin, end, np.maximum(0, values - tiles.layout.tail), values, tiles.frequencies)
    return Streams(*map(frozen, arrays), tiles.layout.lanes, LOWER[tiles.layout.unit_bits])


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view, so that Numba compiles one kernel for arrays in memory and in mapped files."""
    view = array.view()
    view.flags.writeable = False
    return view
