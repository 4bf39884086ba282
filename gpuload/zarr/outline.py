"""What a notebook shows of arrays and groups: the tree below, how it is stored, and what of it can take the fastpath.

Of each array no more files are looked at than takes an instant, and no chunk is read. Nothing here raises: what cannot
be looked at says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from gpuload.zarr import formatting
from gpuload.zarr.array import Array
from gpuload.zarr.dataset import Dataset
from gpuload.zarr.formatting import Part, printable
from gpuload.zarr.inspect import ArrayInspection, sample

_DEEPEST = 8

# Colours come from the page, so that light and dark themes both work; the bar is that of the record's reports: solid
# what can take the fastpath, striped what cannot. A class that is named twice outweighs what a notebook has for tables.
_STYLE = (
    ".gpuload-node{font-size:13px;line-height:1.45}"
    ".gpuload-node .scroll{overflow-x:auto}"
    ".gpuload-node.gpuload-node table{border-collapse:collapse;margin:4px 0 0;color:inherit}"
    ".gpuload-node.gpuload-node th,.gpuload-node.gpuload-node td{text-align:left;vertical-align:top;"
    "padding:2px 14px 2px 0;border:0;background:transparent;color:inherit}"
    ".gpuload-node th{font-weight:600;white-space:nowrap}"
    ".gpuload-node thead th{border-bottom:1px solid currentColor}"
    ".gpuload-node .bar{display:inline-block;width:5em;height:.7em;margin-right:.6em;border:1px solid currentColor;"
    "border-radius:2px;background:repeating-linear-gradient(45deg,#d98200 0 4px,transparent 4px 8px);overflow:hidden}"
    ".gpuload-node .bar span{display:block;height:100%;background:#0072b2}"
    ".gpuload-node .share{white-space:nowrap}"
    ".gpuload-node p{margin:6px 0 0}"
    ".gpuload-node code{background:transparent;color:inherit}"
)
_HEADS = ("name", "can take the fastpath", "dtype", "dimensions", "stored in", "codecs")


@dataclass(frozen=True, slots=True)
class _Line:
    """An array or group of the tree; what is said of groups and of what failed stands in the part's note."""

    depth: int
    part: Part
    codecs: str = ""
    found: ArrayInspection | None = None
    share: str = ""


@dataclass(slots=True)
class _Room:
    """Lines that may still be shown."""

    left: int


def group_page(group: Dataset) -> str:
    """A group as HTML, with all below it as far as it fits; all text that comes from files is escaped."""
    lines = _below(group, 0, _Room(formatting.SHOWN))
    rows = "".join(map(_row, lines))
    heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
    table = f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    if not lines:
        table = "<p>nothing in it</p>"
    return _page(group.title.strip("<>"), table + _mended([line.found for line in lines]))


def array_page(array: Array) -> str:
    """An array as HTML, its attributes folded away; all text that comes from files is escaped."""
    part = array.part(array.name)
    line = _stored(array, 0, part)
    words = {
        "dimensions": part.dims,
        "dtype": part.dtype,
        "stored in": part.chunks,
        "codecs": line.codecs,
        "decoded": f"{array.nbytes:,} bytes",
    }
    rows = [f'<tr><th scope="row">can take the fastpath</th>{_share(line)}</tr>']
    rows += [f'<tr><th scope="row">{head}</th>{_cells(value)}</tr>' for head, value in words.items()]
    inside = "".join(f'<tr><th scope="row">{_text(str(k))}</th>{_cells(str(v))}</tr>' for k, v in array.attrs.items())
    count = len(array.attrs)
    folded = f"<details><summary>{count} attributes</summary><table>{inside}</table></details>" if count else ""
    name = f" {part.name!r}" if part.name else ""
    table = f'<div class="scroll"><table>{"".join(rows)}</table></div>'
    return _page(f"gpuload.Array{name} on {array.device}", table + folded + _mended([line.found]))


def _below(group: Dataset, depth: int, room: _Room) -> list[_Line]:
    """The lines of what `group` holds: itself before what is inside of that, so that nothing large hides the rest."""
    try:
        names = list(group)
    except Exception as error:  # noqa: BLE001 - whatever has become of the files: it is shown, and nothing fails
        return [_Line(depth, Part("", note=f"cannot be listed: {error}"))]
    first = names[: room.left]
    room.left -= len(first)
    lines = []
    for name in first:
        part, node = group.shown(name)
        if isinstance(node, Array):
            lines.append(_stored(node, depth, part))
            continue
        lines.append(_Line(depth, part))
        if isinstance(node, Dataset) and depth < _DEEPEST:
            lines += _below(node, depth + 1, room)
    if len(names) > len(first):
        lines.append(_Line(depth, Part("", note=f"and {len(names) - len(first):,} more")))
    return lines


def _stored(array: Array, depth: int, part: Part) -> _Line:
    try:
        looked = sample(array)
    except Exception as error:  # noqa: BLE001 - the array is shown all the same
        return _Line(depth, part, share=f"cannot be looked at: {error}")
    if looked is None:
        return _Line(depth, part, share="not looked at: the indexes of its shards are large")
    found, complete = looked
    return _Line(depth, part, " ".join(found.codecs), found, _share_words(found, complete=complete))


def _share_words(found: ArrayInspection, *, complete: bool) -> str:
    total = found.fastpath_bytes + found.fallback_bytes
    if not total:
        return "nothing is stored" if complete else "not looked at: among so many files there were no chunks at first"
    reasons = ", ".join(f"{reason} {formatting.percent(nbytes / total)}" for reason, nbytes in found.reasons.items())
    part = "" if complete else ", of a part of the files"
    return f"{formatting.percent(found.share)} %{part}" + (f" ({reasons})" if reasons else "")


def _row(line: _Line) -> str:
    part = line.part
    style = f' style="padding-left:{1.4 * line.depth:g}em"' if line.depth else ""
    name = f'<th scope="row"{style}>{_text(part.name)}</th>'
    if part.note:
        return f'<tr>{name}<td colspan="{len(_HEADS) - 1}">{_text(part.note)}</td></tr>'
    return f"<tr>{name}{_share(line)}{_cells(part.dtype, part.dims, part.chunks, line.codecs)}</tr>"


def _share(line: _Line) -> str:
    found = line.found
    if found is None or not found.fastpath_bytes + found.fallback_bytes:
        return _cells(line.share)
    bar = f'<span class="bar" aria-hidden="true"><span style="width:{100 * found.share:.3f}%"></span></span>'
    return f'<td class="share">{bar}{_text(line.share)}</td>'


def _mended(found: Sequence[ArrayInspection | None]) -> str:
    """The command that mends what can be mended by writing the store anew."""
    command = next((each.pack for each in found if each is not None and each.pack), None)
    if command is None:
        return ""
    return (
        '<p>What codecs and tails stop is mended by <code><span class="gpuload-copy">'
        f"{_text(command)}</span></code></p>"
    )


def _page(title: str, content: str) -> str:
    return f'<style>{_STYLE}</style><div class="gpuload-node"><b>{_text(title)}</b>{content}</div>'


def _cells(*words: Any) -> str:
    return "".join(f"<td>{_text(word)}</td>" for word in words)


def _text(words: str) -> str:
    return escape(printable(words))
