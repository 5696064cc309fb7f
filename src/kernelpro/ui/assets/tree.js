/* The search tree on a canvas, for up to tens of thousands of steps.
 *
 * Layout: each leaf has a row, and a parent is in the middle between its first and last child. The layout is computed
 * when the structure has changed, in one pass without recursion; the step in the middle of the view keeps its place.
 * Only visible parts are painted. When zoomed out, steps are dots without labels. Open steps pulse on a second canvas,
 * so that the tree itself is painted only when something has changed. */
import { ms, speedColour, times, visible, words } from "./common.js";

const LEVEL = 96;
const ROW = 26;
const FONT = "11.5px system-ui, sans-serif";
/* States that are drawn as hollow circles, because nothing was judged. */
export const HOLLOW = new Set(["duplicate", "lost race", "no idea", "out of ideas", "no answer", "unreachable", "internal error"]);
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class TreeView {
  constructor(canvas, over, tip, { onOpen, onSay }) {
    Object.assign(this, { canvas, over, tip, onOpen, onSay });
    this.steps = new Map();
    this.nodes = new Map([[0, { n: 0, children: [], level: 0, row: 0 }]]);
    this.order = [];
    this.open = new Set();
    this.meta = { best: 0, pinned: 0, closed: new Set(), path: new Set() };
    this.view = { x: 40, y: 0, zoom: 1, across: 1 }; // rows and levels have separate scales, because large trees are tall
    this.selected = null;
    this.hovered = null;
    this.onlyPassed = false;
    this.moved = false; // whether the user has moved the view, which then stops following
    this.stale = false;
    this.painting = 0;
    this.paints = 0;
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    this.resize();
  }

  // --- data ------------------------------------------------------------------------------------------------

  update(changed, meta) {
    for (const step of changed) {
      const known = this.steps.get(step.n);
      this.steps.set(step.n, step);
      if (step.open) this.open.add(step.n);
      else this.open.delete(step.n);
      if (!known || this.onlyPassed) this.stale = true;
    }
    if (meta) {
      const path = new Set();
      for (let at = this.steps.get(meta.best); at && !path.has(at.n); at = this.steps.get(at.p)) path.add(at.n);
      if (meta.best !== this.meta.best && !this.moved) this.stale = true;
      this.meta = { ...meta, closed: new Set(meta.closed), path };
      this.inClosed = null;
    }
    this.paint();
    this.pulse();
  }

  setOnlyPassed(value) {
    this.onlyPassed = value;
    this.stale = true;
    this.paint();
  }

  /* Whether a step is in a closed branch. Such steps are drawn faded. */
  isClosed(n) {
    if (!this.meta.closed.size) return false;
    this.inClosed ||= new Map();
    const trail = [];
    let at = n;
    while (at && !this.inClosed.has(at) && !this.meta.closed.has(at)) {
      trail.push(at);
      at = this.steps.get(at)?.p || 0;
    }
    const closed = Boolean(at) && (this.meta.closed.has(at) || this.inClosed.get(at));
    for (const each of trail) this.inClosed.set(each, closed);
    return closed || this.meta.closed.has(n);
  }

  layout() {
    const anchor = this.anchor();
    let wanted = null;
    if (this.onlyPassed) {
      wanted = new Set();
      for (const step of this.steps.values()) {
        if (!step.ms && !step.open) continue;
        for (let at = step; at && !wanted.has(at.n); at = this.steps.get(at.p)) wanted.add(at.n);
      }
    }
    const nodes = new Map([[0, { n: 0, children: [], level: 0, row: 0 }]]);
    const numbers = [...this.steps.keys()].sort((a, b) => a - b);
    for (const n of numbers) {
      if (wanted && !wanted.has(n)) continue;
      const parent = nodes.get(this.steps.get(n).p) || nodes.get(0);
      nodes.set(n, { n, parent, children: [], level: parent.level + 1, row: 0 });
      parent.children.push(nodes.get(n));
    }
    let rows = 0;
    let levels = 0;
    const stack = [[nodes.get(0), false]];
    while (stack.length) {
      const [node, done] = stack.pop();
      if (!node.children.length) {
        node.row = rows++;
        levels = Math.max(levels, node.level);
      } else if (done) {
        node.row = (node.children[0].row + node.children[node.children.length - 1].row) / 2;
      } else {
        stack.push([node, true]);
        for (let k = node.children.length - 1; k >= 0; k--) stack.push([node.children[k], false]);
      }
    }
    Object.assign(this, { nodes, rows, levels, order: [...nodes.values()], stale: false });
    if (anchor && nodes.has(anchor.n)) {
      const [x, y] = this.place(nodes.get(anchor.n));
      this.view.x += anchor.x - x;
      this.view.y += anchor.y - y;
    }
    if (!this.moved) this.follow();
    const wantedNode = nodes.get(this.selected);
    if (wantedNode && !anchor?.n) this.centre(wantedNode, 0.3);
  }

  anchor() {
    const node = this.nodes.get(this.selected) || this.nearest(this.width / 2, this.height / 2, Infinity);
    if (!node) return null;
    const [x, y] = this.place(node);
    return { n: node.n, x, y };
  }

  // --- the view --------------------------------------------------------------------------------------------

  place(node) {
    return [this.view.x + node.level * LEVEL * this.view.across, this.view.y + node.row * ROW * this.view.zoom];
  }

  /* The largest scales at which all levels and all rows are in view. */
  fitting(most) {
    const across = Math.min(most, (this.width - 190) / (LEVEL * Math.max(1, this.levels)));
    const down = Math.min(most, (this.height - 48) / (ROW * Math.max(1, this.rows - 1)));
    return [Math.max(0.002, across), Math.max(0.0005, down)];
  }

  /* Show the whole tree if it is readable at that scale, else the best step at a readable scale. */
  follow() {
    const [across, down] = this.fitting(1);
    if ((across >= 0.45 && down >= 0.5) || this.rows < 2) return this.fit();
    Object.assign(this.view, { zoom: 0.62, across: 0.62 });
    this.centre(this.nodes.get(this.meta.best || -1) || this.order[this.order.length - 1], 0.62);
    const high = ROW * (this.rows - 1) * this.view.zoom;
    if (high < this.height - 48) this.view.y = (this.height - high) / 2;
  }

  fit() {
    if (this.stale) this.layout();
    const [across, down] = this.fitting(1.1);
    Object.assign(this.view, { across: Math.min(across, 1), zoom: down });
    const [wide, high] = [LEVEL * this.levels * this.view.across, ROW * (this.rows - 1) * this.view.zoom];
    this.view.x = Math.max(44, (this.width - wide - 130) / 2);
    this.view.y = Math.max(26, (this.height - high) / 2);
    this.paint();
  }

  centre(node, across = 0.5) {
    if (!node) return;
    const [x, y] = this.place(node);
    this.view.x += this.width * across - x;
    this.view.y += this.height / 2 - y;
    this.paint();
  }

  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const { view } = this;
    const zoom = Math.max(0.0005, Math.min(3, view.zoom * factor));
    const across = Math.max(0.002, Math.min(Math.max(1, zoom), view.across * factor));
    this.view = { x: x - (x - view.x) * (across / view.across), y: y - (y - view.y) * (zoom / view.zoom), zoom, across };
    this.moved = true;
    this.paint();
  }

  select(n, { centre = false } = {}) {
    this.selected = n;
    const node = this.nodes.get(n);
    if (node) {
      const [x, y] = this.place(node);
      if (centre || x < 30 || y < 20 || x > this.width - 60 || y > this.height - 20) this.centre(node);
      this.onSay(n ? this.describe(n) : "the reference");
    }
    this.paint();
  }

  describe(n) {
    const step = this.steps.get(n);
    if (!step) return "";
    const result = step.ms ? `${times(step.x)} over ${step.base}, ${ms(step.ms)}` : words(step.s);
    return `step ${n}: ${result}${step.plan ? `; ${visible(step.plan)}` : ""}`;
  }

  // --- input -----------------------------------------------------------------------------------------------

  nearest(x, y, limit) {
    let found = null;
    let least = limit * limit;
    for (const node of this.order) {
      const [at, high] = this.place(node);
      const far = (at - x) ** 2 + (high - y) ** 2;
      if (far < least) [found, least] = [node, far];
    }
    return found;
  }

  listen() {
    const { canvas } = this;
    const fingers = new Map();
    let drag = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, at(event));
      drag = { from: at(event), far: 0 };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      const before = fingers.get(event.pointerId);
      if (!before) return this.hover(x, y);
      if (fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
        const distance = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        this.zoomBy(distance([x, y]) / distance(before), (x + other[0]) / 2, (y + other[1]) / 2);
      } else {
        this.view.x += x - before[0];
        this.view.y += y - before[1];
        drag.far += Math.hypot(x - before[0], y - before[1]);
        if (drag.far > 4) this.moved = true;
        this.paint();
      }
      fingers.set(event.pointerId, [x, y]);
    });
    const up = (event) => {
      if (fingers.size === 1 && drag && drag.far <= 4 && event.type === "pointerup") {
        const node = this.nearest(...at(event), 16);
        if (node && node.n) {
          this.select(node.n);
          this.onOpen(node.n);
        }
      }
      fingers.delete(event.pointerId);
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.hover(-1e9, -1e9));
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) this.zoomBy(Math.exp(-event.deltaY / 300), ...at(event));
      else if (document.activeElement === canvas) {
        this.view.x -= event.deltaX;
        this.view.y -= event.deltaY;
        this.moved = true;
        this.paint();
      } else return;
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (this.key(event.key)) event.preventDefault();
    });
  }

  key(key) {
    const node = this.nodes.get(this.selected) || this.nodes.get(this.meta.best) || this.order[1];
    if (!node) return false;
    const beside = (direction) => {
      let found = null;
      for (const other of this.order) {
        const far = (other.row - node.row) * direction;
        if (other.level === node.level && far > 0 && (!found || far < (found.row - node.row) * direction)) found = other;
      }
      return found;
    };
    const moves = {
      ArrowLeft: () => node.parent, ArrowRight: () => node.children[0], ArrowUp: () => beside(-1), ArrowDown: () => beside(1),
      Home: () => this.order[1], End: () => this.order[this.order.length - 1], b: () => this.nodes.get(this.meta.best),
    };
    if (moves[key]) {
      const to = this.selected === null && key.startsWith("Arrow") ? node : moves[key]();
      if (to) {
        this.moved = true;
        this.select(to.n);
      }
    } else if (key === "Enter" || key === " ") {
      if (this.selected) this.onOpen(this.selected);
    } else if (key === "+" || key === "=") this.zoomBy(1.25);
    else if (key === "-") this.zoomBy(0.8);
    else if (key === "0") {
      this.moved = true;
      this.fit();
    } else return false;
    return true;
  }

  hover(x, y) {
    const node = this.nearest(x, y, 16);
    const n = node && node.n ? node.n : null;
    if (n !== this.hovered) {
      this.hovered = n;
      this.canvas.style.cursor = n ? "pointer" : "";
      this.tip.hidden = n === null;
      if (n) this.tip.textContent = this.describe(n);
      this.drawOver();
    }
    if (n) {
      const [left, top] = this.place(node);
      this.tip.style.left = `${Math.min(left + 14, this.width - 300)}px`;
      this.tip.style.top = `${Math.min(top + 14, this.height - 70)}px`;
    }
  }

  // --- painting --------------------------------------------------------------------------------------------

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const dense = Math.min(2, devicePixelRatio || 1);
    const first = !this.width;
    Object.assign(this, { width: box.width, height: box.height, dense });
    for (const canvas of [this.canvas, this.over]) {
      canvas.width = Math.round(box.width * dense);
      canvas.height = Math.round(box.height * dense);
    }
    if (first || !this.moved) this.stale = true;
    this.paint();
  }

  paint() {
    if (!this.painting) this.painting = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    this.painting = 0;
    if (!this.width) return;
    if (this.stale) this.layout();
    this.paints++;
    const { view, look } = this;
    if (!look) return;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.dense, 0, 0, this.dense, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const visibleNodes = [];
    const [wide, high] = [LEVEL * view.across, ROW * view.zoom];
    const plain = new Path2D();
    const strong = new Path2D();
    const far = high < 6 && this.order.length > 1500;
    const brackets = []; // when zoomed out, one vertical line for all children of a node
    const dots = new Set(); // when zoomed out, steps on the same pixel are painted once
    for (const node of this.order) {
      const x = view.x + node.level * wide;
      const y = view.y + node.row * high;
      const parent = node.parent;
      if (far && node.children.length) {
        const [top, bottom] = [view.y + node.children[0].row * high, view.y + node.children[node.children.length - 1].row * high];
        if (bottom >= 0 && top <= this.height && x + wide >= 0 && x <= this.width) brackets.push(x + wide / 2, top, Math.max(0.6, bottom - top));
      }
      if (parent && (!far || this.meta.path.has(node.n))) {
        const [px, py] = [x - wide, view.y + parent.row * high];
        if (x >= 0 && px <= this.width && Math.max(y, py) >= 0 && Math.min(y, py) <= this.height) {
          const path = this.meta.path.has(node.n) ? strong : plain;
          path.moveTo(px, py);
          path.bezierCurveTo(px + wide / 2, py, px + wide / 2, y, x, y);
        }
      }
      if (x > -150 && x < this.width + 20 && y > -20 && y < this.height + 20) {
        const dot = far && node.n !== this.meta.best && Math.round(x) * 65536 + Math.round(y);
        if (far && dots.has(dot)) continue;
        dots.add(dot);
        visibleNodes.push([node, x, y]);
      }
    }
    pen.lineWidth = Math.max(0.5, Math.min(1.2, view.zoom * 1.4));
    pen.strokeStyle = look.soft;
    pen.globalAlpha = far ? 0.28 : 0.42;
    if (far) {
      pen.fillStyle = look.soft;
      for (let k = 0; k < brackets.length; k += 3) pen.fillRect(brackets[k], brackets[k + 1], 1, brackets[k + 2]);
    } else pen.stroke(plain);
    pen.lineWidth = Math.max(1.4, 2.4 * Math.min(1, view.zoom));
    pen.strokeStyle = look.accent;
    pen.globalAlpha = 0.75;
    pen.stroke(strong);
    pen.globalAlpha = 1;
    for (const [node, x, y] of visibleNodes) this.paintNode(pen, node, x, y, far);
    if (high >= 12) this.paintLabels(pen, visibleNodes);
    this.drawOver();
  }

  /* Labels of the best step and its path come first, then of leaves. Overlapping labels are omitted. */
  paintLabels(pen, visibleNodes) {
    const { look, view, meta } = this;
    const taken = new Map(); // occupied boxes, by the bands of 16 pixels that they touch
    const rank = ({ n, children }) => (n === meta.best || n === this.selected ? 0 : meta.path.has(n) || !n || this.open.has(n) ? 1 : children.length ? 3 : 2);
    const small = Math.min(1, Math.max(0.35, view.zoom * 1.25));
    pen.font = FONT;
    const bands = (top, bottom) => Array.from({ length: Math.floor(bottom / 16) - Math.floor(top / 16) + 1 }, (_, k) => Math.floor(top / 16) + k);
    const take = (n, left, right, top, bottom) => {
      for (const band of bands(top, bottom)) {
        if (!taken.has(band)) taken.set(band, []);
        taken.get(band).push([n, left, right, top, bottom]);
      }
    };
    const size = (node) => (node.n ? this.radius(this.steps.get(node.n)) : 5) * small;
    for (const [node, x, y] of visibleNodes) take(node.n, x - size(node), x + size(node), y - size(node), y + size(node));
    for (const [node, x, y] of [...visibleNodes].sort((a, b) => rank(a[0]) - rank(b[0]))) {
      const step = this.steps.get(node.n);
      const leaf = !node.children.length && node.n;
      const radius = size(node) + (node.n === meta.best && !leaf ? 4 : 0);
      const said = node.n ? this.label(step, node.n) : "reference";
      const wide = pen.measureText(said).width + 4;
      const places = leaf ? [[x + radius + (node.n === meta.best || this.open.has(node.n) ? 9 : 5), y]] : [[x - wide / 2, y - radius - 9], [x - wide / 2, y + radius + 9]];
      const free = ([left, middle]) => !bands(middle - 6, middle + 6).some((band) => (taken.get(band) || [])
        .some(([n, from, to, top, bottom]) => n !== node.n && left < to && left + wide > from && middle - 6 < bottom && middle + 6 > top));
      const place = places.find(free) || (rank(node) ? null : places[0]);
      if (!place) continue;
      const [left, middle] = place;
      take(node.n, left, left + wide, middle - 6, middle + 6);
      pen.globalAlpha = this.isClosed(node.n) ? 0.35 : 1;
      this.write(pen, said, left, middle, meta.path.has(node.n) ? look.ink : look.soft, node.n === meta.best);
    }
    pen.globalAlpha = 1;
  }

  label(step, n) {
    const { meta } = this;
    const mark = `${meta.best === n ? "★ " : ""}${meta.pinned === n ? "◉ " : ""}${meta.closed.has(n) ? "✕ " : ""}${step.pasted ? "✎ " : ""}`;
    return `${mark}${n}: ${step.ms ? times(step.x) : words(step.s)}`;
  }

  radius(step) {
    return step.ms ? 4.5 + 1.6 * Math.log2(1 + Math.min(16, step.x || 1)) : 4;
  }

  paintNode(pen, node, x, y, far) {
    const { look, view, meta } = this;
    const small = Math.min(1, Math.max(0.35, view.zoom * 1.25));
    if (!node.n) {
      pen.fillStyle = look.ink;
      pen.fillRect(x - 5 * small, y - 5 * small, 10 * small, 10 * small);
      return;
    }
    const step = this.steps.get(node.n);
    const best = node.n === meta.best;
    const colour = step.ms ? speedColour(step.x || 1, look.speeds) : look.states[step.s] || look.soft;
    pen.globalAlpha = this.isClosed(node.n) ? 0.3 : 1;
    if (far && !best) {
      const size = step.ms ? 2.6 : 1.6;
      pen.fillStyle = colour;
      pen.fillRect(x - size / 2, y - size / 2, size, size);
      pen.globalAlpha = 1;
      return;
    }
    const radius = this.radius(step) * small;
    pen.beginPath();
    if (step.compiler) {
      pen.moveTo(x, y - radius);
      pen.lineTo(x + radius, y);
      pen.lineTo(x, y + radius);
      pen.lineTo(x - radius, y);
      pen.closePath();
    } else if (step.ms || HOLLOW.has(step.s) || step.open) pen.arc(x, y, radius, 0, 7);
    else pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    const hollow = HOLLOW.has(step.s) || (step.open && !step.ms);
    pen.fillStyle = hollow ? look.card : colour;
    pen.fill();
    pen.lineWidth = hollow ? 1.4 : 1;
    pen.strokeStyle = hollow ? (step.open ? look.accent : colour) : look.card;
    pen.stroke();
    if (best) {
      pen.beginPath();
      pen.arc(x, y, radius + 4, 0, 7);
      pen.lineWidth = 2;
      pen.strokeStyle = look.accent;
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  write(pen, text, x, y, colour, bold = false) {
    pen.font = bold ? `600 ${FONT}` : FONT;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.lineWidth = 3;
    pen.strokeStyle = this.look.card;
    pen.strokeText(text, x, y);
    pen.fillStyle = colour;
    pen.fillText(text, x, y);
    pen.font = FONT;
  }

  drawOver(time = performance.now()) {
    const pen = this.over.getContext("2d");
    pen.setTransform(this.dense, 0, 0, this.dense, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (!this.look) return;
    for (const [n, colour] of [[this.hovered, this.look.soft], [this.selected, this.look.ink]]) {
      const node = this.nodes.get(n);
      if (!node || n === null) continue;
      pen.beginPath();
      pen.arc(...this.place(node), 13, 0, 7);
      pen.lineWidth = 1.6;
      pen.strokeStyle = colour;
      pen.stroke();
    }
    const phase = still.matches || !this.live ? 0.35 : (time % 1400) / 1400;
    for (const n of this.open) {
      const node = this.nodes.get(n);
      if (!node) continue;
      const [x, y] = this.place(node);
      if (x < -20 || y < -20 || x > this.width + 20 || y > this.height + 20) continue;
      pen.beginPath();
      pen.arc(x, y, 5 + 11 * phase, 0, 7);
      pen.globalAlpha = 1 - phase;
      pen.lineWidth = 2;
      pen.strokeStyle = this.look.accent;
      pen.stroke();
      pen.globalAlpha = 1;
    }
  }

  /* While steps are open and the tab is visible, paint the second canvas about ten times a second. */
  pulse() {
    if (this.pulsing || still.matches || !this.open.size) return;
    this.pulsing = true;
    let last = 0;
    const beat = (time) => {
      if (!this.open.size || !this.live) {
        this.pulsing = false;
        return this.drawOver();
      }
      if (time - last > 90) {
        last = time;
        this.drawOver(time);
      }
      requestAnimationFrame(beat);
    };
    requestAnimationFrame(beat);
  }
}
