"""Stages in Triton whose rows have loops of their own: tiles of several rows and a stretch of each.

A row that fits lies in registers as a whole, and every step finds it there (`keep`). A longer one is gone over in
stretches, once for each pass; reductions that depend on each other share a pass where they can (online.py). Where there
are too few rows to fill a GPU, several programs share one (`split`): each pass that reduces becomes a kernel whose
programs leave their parts in memory, and whoever comes next joins them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule import online_reductions as online
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants, split_into_passes, scans_of
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.triton.syntax import begun, combined, computed, held, identity, scratch_type
from kernelpro.authors.playbook.triton.stage_kernel import NAMELESS, Kernels, Tile, indented

LARGEST = 32768
"""Elements of a tile that registers hold: 32 for each of 1024 threads."""


class Rows(Tile):
    """With one row at a time, the tile is the stretch alone, and what a row has is a plain number."""

    def __init__(self, kernels: Kernels, stage: Stage, how: StageDesign, place: int):
        super().__init__(kernels, stage, how, place)
        self._single = how.coarsening == 1 or stage.rows == 1
        self.shape = "[]" if self._single else "[ROWS, 1]"
        self._passes = split_into_passes(stage)
        self._widths = {one.loops: prod(var.extent for var in one.loops) for one in self._passes if one.loops}
        self._columns: dict[tuple[LoopVar, ...], LoopVar] = {}
        for loops, width in self._widths.items():
            column = LoopVar("cols" if len(self._widths) == 1 else f"cols{len(self._columns)}", width)
            self._columns[loops] = column
            self.printer.places.update(
                zip(loops, unflatten(variable(column), [v.extent for v in loops]), strict=True)
            )
        self._widest = max(self._widths.values(), default=1)
        self._whole = how.cache_row and fits(stage)
        self._followers: dict[str, online.OnlineReduction] = {}
        if not self._whole:
            self._passes, self._followers = online.fuse_online(self._passes)
        alone = self._whole or scans_of(step.value for step in stage.steps)
        self._split = 1 if alone else power_of_two(how.split)

    def write(self) -> None:
        self._declare()
        if self._split == 1:
            names: Names = {}
            body = [line for one in self._passes for line in self._pass(one, names)]
            self._kernel(f"stage{self.place}", body + self.add_totals(names), shared=False, last=True)
            return
        done: list[RowPass] = []
        for number, one in enumerate(self._passes):
            if not one.loops or not _reduces(one):
                continue
            names = {}
            body = [*self._joined(done, names), *self._pass(one, names), *self._leave(one)]
            self._kernel(f"stage{self.place}_part{number}", body, shared=True, last=False)
            done.append(one)
        names, rest = (
            {},
            [one for one in self._passes if one not in done and not (_reduces(one) and not one.loops)],
        )
        body = self._joined(done, names)
        shared = any(one.loops for one in rest)
        for one in rest:
            body += self._pass(one, names)
        body += self.add_totals(names, "(part == 0)" if shared else "")
        self._kernel(f"stage{self.place}", body, shared=shared, last=True)

    # --- the frame of a kernel ---------------------------------------------------------------------------------

    def _declare(self) -> None:
        """What may be tuned, and the masks that follow from it."""
        place, how, kernels = self.place, self.how, self.kernels
        threads = kernels.threads(place, how.threads)
        self._constants: dict[str, str] = {}
        rows: Sequence[int] = [1]
        if not self._single:
            together = min(how.coarsening, power_of_two(self.stage.rows))
            tried = [
                r for r in (together // 2, together, together * 2) if 1 < r <= power_of_two(self.stage.rows)
            ]
            self._constants["ROWS"] = kernels.tunable(
                f"COARSENING{place}", together, [r for r in tried if self._can_hold(r)]
            )
            rows = kernels.tunables[f"COARSENING{place}"][1]
        self._mask = self.mask_rows(rows)
        self._stretches: set[int] = set()
        if not self._whole and self._widths:
            most = power_of_two(self._widest)
            vectors = kernels.vector(place, how.vector_width)
            self._stretches = {max(16, min(most, t * v // r)) for t in threads for v in vectors for r in rows}
            each = f"THREADS{place} * VECTOR_WIDTH{place}" + ("" if self._single else f" // COARSENING{place}")
            kernels.derived.append(f"STRETCH{place} = max(16, min({most}, {each}))")
            self._constants["STRETCH"] = f"STRETCH{place}"
        if self._split > 1:
            split = self._split
            self._constants["SPLIT"] = kernels.tunable(
                f"SPLIT{place}", split, [s for s in (split // 2, split, split * 2) if s > 1]
            )
        for column in self._columns.values():
            if any(column.extent % length for length in self._lengths(column)):
                self.printer.masks[column] = f"{column.name}_in"

    def _can_hold(self, rows: int) -> bool:
        return not self._whole or rows * power_of_two(self._widest) <= LARGEST or rows == self.how.coarsening

    def _lengths(self, column: LoopVar) -> Sequence[int]:
        """What a row is cut into: stretches, and as many of them as there are programs."""
        splits = self.kernels.tunables[f"SPLIT{self.place}"][1] if self._split > 1 else [1]
        return (
            [power_of_two(column.extent)]
            if self._whole
            else [length * split for length in self._stretches for split in splits]
        )

    def _kernel(self, name: str, body: list[str], shared: bool, last: bool) -> None:
        """`shared`: several programs share a row; `last`: totals are made here."""
        number = "block // SPLIT" if shared else "block"
        lines = [
            f"rows = {number}" if self._single else f"rows = {number} * ROWS + tl.arange(0, ROWS)[:, None]",
            *self._mask,
        ]
        lines += ["part = block % SPLIT"] if shared else []
        for column in self._columns.values() if self._whole else ():
            lines += [
                f"{column.name} = {self._along(power_of_two(column.extent))}",
                *self._column_mask(column),
            ]
        blocks = (
            str(self.stage.rows) if self._single else f"-(-{self.stage.rows} // {self._constants['ROWS']})"
        )
        blocks += f" * {self._constants['SPLIT']}" if shared else ""
        if not last:
            body = [f"block = {self.kernels.program_number()}", *lines, *body]
            self.kernels.add(name, body, self._constants, blocks, num_warps=f"THREADS{self.place} // 32")
            return
        body, grid = self.over_rows(blocks, [*lines, *body])
        self.launch(name, body, self._constants, blocks, grid)
        self.write_totals(grid)

    def _along(self, length: int | str) -> str:
        """A stretch of the tile's second side, or of the only one."""
        return f"tl.arange(0, {length})" if self._single else f"tl.arange(0, {length})[None, :]"

    def _reduced(self, kind: str, text: str, value: Expr) -> str:
        """One number for each row of the tile."""
        return self.printer.reduced(kind, text, value.dtype, 0 if self._single else 1, keep=not self._single)

    def _full(self, text: str, value: Expr, loops: Iterable[LoopVar], length: str) -> str:
        """As long as the tile, even where the value is the same all along the row."""
        if value.variables & set(loops):
            return text
        return f"(tl.zeros({f'[{length}]' if self._single else f'[1, {length}]'}, {computed(value.dtype)}) + {text})"

    def _column_mask(self, column: LoopVar) -> list[str]:
        mask = self.printer.masks.get(column)
        return [f"{mask} = {column.name} < {column.extent}"] if mask else []

    # --- one pass ----------------------------------------------------------------------------------------------

    def _pass(self, one: RowPass, names: Names) -> list[str]:
        if not one.loops:
            return self.once(one, names)
        column = self._columns[one.loops]
        if self._whole:
            length = str(power_of_two(column.extent))
            lines = []
            for scan in scans_of(step.value for step in one.steps):
                lines += self._running(scan, names, length, "")
            lines += self.printer.statements([s.value for s in one.steps if s.value.op not in NAMELESS], names)
            for step in one.steps:
                text = (
                    self.store(step, names)
                    if isinstance(step, StoreStep)
                    else self._number(one, step, names, length)
                )
                lines.append(
                    text
                    if isinstance(step, StoreStep)
                    else f"{step.name} = {self._reduced(step.kind, text, step.value)}"
                )
            return lines
        return self._stretches_of(one, names, column)

    def _running(self, scan: Expr, names: Names, length: str, before: str) -> list[str]:
        """The running sum of what the tile holds, on top of what came before it."""
        (arg,) = scan.args
        lines = self.printer.statements([arg] if arg.op not in NAMELESS else [], names)
        text = self._full(self.printer.number(scan.data[0], arg, names), arg, scan.data[1:], length)
        made = self.printer.running(scan.data[0], text, 0 if self._single else 1)
        names[scan] = f"v{scan.number}"
        return [*lines, f"{names[scan]} = {combined(scan.data[0], before, made) if before else made}"]

    def _number(self, one: RowPass, step: ReduceStep, names: Names, length: str, nothing: str = "") -> str:
        """What the tile gives to a reduction: nothing where there is no element."""
        text = self._full(self.printer.number(step.kind, step.value, names), step.value, one.loops, length)
        masks = [mask for mask in (self.printer.masks.get(self._columns[one.loops]),) if mask] + self.within(
            one.guards
        )
        nothing = nothing or identity(step.kind, held(step.kind, step.value))
        return f"tl.where({' & '.join(masks)}, {text}, {nothing})" if masks else text

    def _stretches_of(self, one: RowPass, names: Names, column: LoopVar) -> list[str]:
        roots = [step.value for step in one.steps]
        given = {f.base_value for f in (self._followers.get(r.name) for r in _reduces(one)) if f}
        lines = self.printer.statements(loop_invariants(roots, set(one.loops), {**names, **dict.fromkeys(given, "")}), names)
        reduces, scans = _reduces(one), scans_of(roots)
        following = {r.name: follower for r in reduces if (follower := self._followers.get(r.name))}
        squares = {
            follower.base.name: name for name, follower in following.items() if follower.kind == "centred"
        }
        tops = {follower.base.name for follower in following.values() if follower.kind == "scaled"}
        for r in reduces:
            by_row = r.name in tops or (r.name in following and r.name not in squares.values())
            shape = self.shape if by_row else "[STRETCH]" if self._single else "[ROWS, STRETCH]"
            lines.append(f"{r.name} = {begun(r.kind, held(r.kind, r.value), shape)}")
        for scan in scans:
            lines.append(f"s{scan.number} = {begun(scan.data[0], scan.dtype, self.shape)}")
        own = dict(names)
        body = [f"{column.name} = start + {self._along('STRETCH')}", *self._column_mask(column)]
        for scan in scans:
            body += self._running(scan, own, "STRETCH", f"s{scan.number}")
            whole = self._number(one, ReduceStep("", scan.data[0], scan.args[0], one.loops), own, "STRETCH")
            body.append(
                f"s{scan.number} = {combined(scan.data[0], f's{scan.number}', self._reduced(scan.data[0], whole, scan))}"
            )
        plain = [step for step in one.steps if not (isinstance(step, ReduceStep) and step.name in following)]
        body += self.printer.statements([s.value for s in plain if s.value.op not in NAMELESS], own)
        for step in plain:
            if isinstance(step, StoreStep):
                body.append(self.store(step, own))
            elif step.name in squares:
                body += self._average(
                    step, self._number(one, step, own, "STRETCH", nothing=step.name), squares[step.name]
                )
            else:
                text = self._number(one, step, own, "STRETCH")
                body += (
                    _top(step, self._reduced("max", text, step.value))
                    if step.name in tops
                    else [_added(step, text)]
                )
        for step in reduces:
            if step.name in following and step.name not in squares.values():
                body += self._scaled(one, step, own)
        lines += self._over(column, [*body, *(f"{name} = {name}_now" for name in sorted(tops))])
        for mean, name in squares.items():
            lines += self._averaged(mean, name, following[name].base.value, column)
        done = {*tops, *following, *squares}
        return lines + [
            f"{r.name} = {self._reduced(r.kind, r.name, r.value)}" for r in reduces if r.name not in done
        ]

    def _over(self, column: LoopVar, body: list[str]) -> list[str]:
        """The loop over the stretches of a row, or of the part of it that the program has."""
        if self._split == 1:
            return [f"for start in range(0, {column.extent}, STRETCH):", *indented(body)]
        turns = f"({column.extent} + STRETCH * SPLIT - 1) // (STRETCH * SPLIT)"
        head = ["seen = turn * STRETCH", f"start = part * {self._section(column)} + seen"]
        return [f"for turn in range(0, {turns}):", *indented([*head, *body])]

    def _section(self, column: LoopVar) -> str:
        """Elements of a row that are one program's."""
        return f"(({column.extent} + STRETCH * SPLIT - 1) // (STRETCH * SPLIT) * STRETCH)"

    # --- reductions that follow another ------------------------------------------------------------------------

    def _scaled(self, one: RowPass, step: ReduceStep, names: Names) -> list[str]:
        """A sum that is scaled down where the maximum so far grows."""
        follower = self._followers[step.name]
        base = follower.base.name
        own = {**names, follower.base_value: f"{base}_top"}
        lines = self.printer.statements([step.value], own)
        here = self._reduced("sum", self._number(one, step, own, "STRETCH"), step.value)
        return [*lines, f"{step.name} = {step.name} * tl.exp({base} - {base}_top) + {here}"]

    def _average(self, step: ReduceStep, text: str, squares: str) -> list[str]:
        """Each place of the tile has a mean of its own so far, and squares about it; elements that are none are given as that
        mean, and change nothing."""
        name, turn = step.name, "start // STRETCH" if self._split == 1 else "turn"
        return [
            f"{name}_here = {text}",
            f"{name}_off = {name}_here - {name}",
            f"{name} += {name}_off * (tl.full([], 1.0, {computed(step.value.dtype)}) / ({turn} + 1))",
            f"{squares} += {name}_off * ({name}_here - {name})",
        ]

    def _averaged(self, mean: str, squares: str, value: Expr, column: LoopVar) -> list[str]:
        """The sum, and the squares about the mean, of what all places of the tile have seen."""
        lines, count, all_of_it = [], str(column.extent), f"{column.extent}.0"
        if self._split > 1:
            section = self._section(column)
            lines += [
                f"{mean}_count = tl.minimum(tl.maximum({column.extent} - part * {section}, 0), {section})"
            ]
            count, all_of_it = f"{mean}_count", f"tl.maximum({mean}_count, 1)"
        return [
            *lines,
            f"{mean}_seen = (tl.maximum({count} - {self._along('STRETCH')}, 0) + STRETCH - 1) // STRETCH * 1.0",
            f"{mean}_all = {self._reduced('sum', f'{mean} * {mean}_seen', value)}",
            f"{mean}_off = {mean} - {mean}_all / {all_of_it}",
            f"{squares} = {self._reduced('sum', f'{squares} + {mean}_seen * {mean}_off * {mean}_off', value)}",
            f"{mean} = {mean}_all",
        ]

    # --- rows that several programs share ----------------------------------------------------------------------

    def _leave(self, one: RowPass) -> list[str]:
        """Each program's part of the row's numbers goes to memory."""
        lines, mask = [], self.printer.masks.get(self.row)
        for r in _reduces(one):
            self.kernels.scratch(
                f"part_{r.name}",
                f"{self.stage.rows} * {self._constants['SPLIT']}",
                scratch_type(r.kind, r.value),
            )
            self.printer.touched[f"part_{r.name}"] = None
            lines.append(
                f"tl.store(part_{r.name} + rows * SPLIT + part, {r.name}{f', mask={mask}' if mask else ''})"
            )
        return lines

    def _joined(self, done: list[RowPass], names: Names) -> list[str]:
        """The row's numbers, of the parts that earlier kernels have left, and those that need no loop."""
        lines, mask = [f"parts = {self._along('SPLIT')}"] if done else [], self.printer.masks.get(self.row)
        there: set[str] = set()
        for one in self._passes:
            reduces = _reduces(one)
            if not one.loops and reduces and _known(reduces, there):
                lines += self.once(RowPass((), [*reduces]), names)
            elif one in done:
                for r in reduces:
                    self.printer.touched[f"part_{r.name}"] = None
                    lines.append(
                        f"{r.name}_parts = tl.load(part_{r.name} + rows * SPLIT + parts{f', mask={mask}, other=0' if mask else ''})"
                    )
                    lines += self._put_together(r, self._columns[one.loops])
            else:
                continue
            there |= {r.name for r in reduces}
        return lines

    def _put_together(self, r: ReduceStep, column: LoopVar) -> list[str]:
        follower, name = self._followers.get(r.name), r.name
        if follower is None:
            return [f"{name} = {self._reduced(r.kind, f'{name}_parts', r.value)}"]
        base = follower.base.name
        if follower.kind == "scaled":
            return [
                f'{base}_top = tl.where({base} == float("-inf"), 0.0, {base})',
                f"{name} = {self._reduced('sum', f'{name}_parts * tl.exp({base}_parts - {base}_top)', r.value)}",
            ]
        section = self._section(column)
        return [
            f"{name}_count = tl.minimum(tl.maximum({column.extent} - parts * {section}, 0), {section}) * 1.0",
            f"{name}_off = {base}_parts / tl.maximum({name}_count, 1.0) - {base} / {column.extent}.0",
            f"{name} = {self._reduced('sum', f'{name}_parts + {name}_count * {name}_off * {name}_off', r.value)}",
        ]


def fits(stage: Stage) -> bool:
    """A whole row lies in registers."""
    return all(power_of_two(prod(var.extent for var in step.loops)) <= LARGEST for step in stage.steps)


def _top(step: ReduceStep, here: str) -> list[str]:
    """The maximum so far; where that is -inf, exp(x - 0) is as good."""
    now = f"{step.name}_now"
    return [
        f"{now} = {combined(step.kind, step.name, here)}",
        f'{step.name}_top = tl.where({now} == float("-inf"), 0.0, {now})',
    ]


def _added(step: ReduceStep, text: str) -> str:
    return f"{step.name} = {combined(step.kind, step.name, text)}"


def _reduces(one: RowPass) -> list[ReduceStep]:
    return [step for step in one.steps if isinstance(step, ReduceStep)]


def _known(reduces: list[ReduceStep], there: set[str]) -> bool:
    return all(node.data in there for r in reduces for node in r.value.walk() if node.op == "row")
