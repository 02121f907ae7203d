// A Strip shows a view of one engine on a canvas with the playhead in it; a Panel shows one iteration, the playhead's.

const JUMPS = ["admit", "finish", "preempt", "abort"]; // the events worth a mark, and a stop of the jump buttons

function canvasOf(engine, view) {
  const canvas = document.createElement("canvas");
  canvas.dataset.engine = engine.name;
  canvas.dataset.view = view.name;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${view.name} of ${engine.name}; the caption tells each frame in words`);
  return canvas;
}

// To set a canvas's size empties it, also where it stays the same.
function setSize(canvas, width, height, dpr) {
  const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.height = `${height}px`;
}

// A strip's view is an object with: name; top, px above its rows; rows(engine) and rowHeight(engine), in px;
// paint(g, pen) for what does not move; labels(g, pen) for what stays in sight while the window moves;
// gutter(g, pen, rows) for the names at the left; tip(player, engine, row, i) and pick(engine, row, i, y) for what is
// under the pointer; why(player, engine, row, i), what an empty cell answers; legend(player); saysDone, whether it tells in words
// that the run is over. A pen knows where
// iteration i begins and finishes and where a row lies, in px; its first and end bound the iterations to paint.
//
// What does not move is painted once, on a tile about two windows wide, and copied for each frame: bright up to the
// playhead, faint beyond.
class Strip {
  constructor(player, e, view) {
    Object.assign(this, { player, e, view, engine: player.engines[e], tile: new OffscreenCanvas(1, 1) });
    this.h = view.rowHeight(this.engine);
    this.top = view.top;
    this.height = this.top + Math.ceil(view.rows(this.engine) * this.h) + TICKS;
    this.node = this.canvas = canvasOf(this.engine, view);
    this.widths = new Map();
  }

  resize(width, dpr) {
    this.width = width;
    setSize(this.canvas, width, this.height, dpr);
  }

  pen(toX) {
    const { engine, e, h, top, width, widths, player } = this, { axis, theme, follow, data, scale } = player;
    const snap = (value) => Math.round(toX(value)); // whole pixels: crisp edges, no seams between neighbours
    return {
      engine, e, h, width, widths, theme, follow, phases: data.phases, requests: player.labels, prompts: player.prompts, top,
      y: (row) => top + row * h, hue: (request) => theme.hues[request % theme.hues.length],
      begin: (i) => snap(axis.begins[e][i]), finish: (i) => snap(axis.ends[e][i]), cell: scale * axis.unit,
    };
  }

  // The tile holds axis values [tileFrom, tileFrom + its width / scale).
  repaint(from, plot, dpr) {
    const { axis, scale, version } = this.player;
    const inside = from >= this.tileFrom && from + plot / scale <= this.tileFrom + this.tileWidth / scale + 1e-9;
    if (this.painted === version && inside) return;
    const whole = axis.length * scale <= 2 * plot;
    this.painted = version;
    this.tileFrom = whole ? 0 : Math.max(0, from - (plot / scale) * 0.25);
    this.tileWidth = Math.ceil(whole ? Math.max(axis.length * scale, plot) : 2 * plot);
    this.tile.width = Math.ceil(this.tileWidth * dpr);
    this.tile.height = this.canvas.height;
    const g = this.tile.getContext("2d"), pen = this.pen((value) => (value - this.tileFrom) * scale);
    g.scale(dpr, dpr);
    pen.first = Math.max(0, axis.at(this.e, this.tileFrom));
    pen.end = axis.at(this.e, this.tileFrom + this.tileWidth / scale) + 1;
    this.view.paint(g, pen);
  }

  draw(from, plot, dpr) {
    const g = this.canvas.getContext("2d"), { axis, scale, theme, position } = this.player;
    const now = axis.at(this.e, position), pen = this.pen((value) => GUTTER + (value - from) * scale);
    pen.now = now;
    this.repaint(from, plot, dpr);
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    const cut = now < 0 ? GUTTER : Math.min(Math.max(pen.finish(now), GUTTER), GUTTER + plot);
    this.copy(g, GUTTER, cut, from, dpr, 1);
    this.copy(g, cut, GUTTER + plot, from, dpr, FUTURE);
    g.font = `${this.h < 16 ? 10 : 11}px ${theme.font}`;
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillStyle = theme.fg;
    g.lineWidth = 3;
    g.lineJoin = "round";
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, plot, this.height);
    g.clip();
    this.view.labels(g, pen);
    this.drawTicks(g, from, plot);
    this.drawPlayhead(g, pen);
    g.restore();
    this.drawGutter(g, pen);
  }

  copy(g, left, right, from, dpr, alpha) {
    const shift = (from - this.tileFrom) * this.player.scale - GUTTER, width = Math.min(right, this.tileWidth - shift) - left;
    if (width <= 0) return;
    g.globalAlpha = alpha;
    g.drawImage(this.tile, (left + shift) * dpr, 0, width * dpr, this.tile.height, left, 0, width, this.height);
    g.globalAlpha = 1;
  }

  drawTicks(g, from, plot) {
    const { axis, scale, theme } = this.player, y = this.height - TICKS / 2 + 2, inTime = axis.clock === "time";
    const step = niceStep(60 / scale, inTime ? 1e-6 : 1);
    g.fillStyle = theme.dim;
    g.textAlign = "center";
    const write = (at, text) => {
      const x = GUTTER + (at - from) * scale, half = g.measureText(text).width / 2;
      if (at >= from && at < axis.length && x + half < GUTTER + plot) g.fillText(text, Math.max(x, GUTTER + half), y);
    };
    if (!inTime && step > 1) write(0.5, "1"); // iterations are counted from 1, and number n lies at [n - 1, n)
    for (let value = Math.max(inTime ? 0 : 1, Math.ceil(from / step)) * step; value <= from + plot / scale + 1; value += step) {
      if (inTime) write(value, seconds(value, step));
      else write(value - 0.5, String(value));
    }
  }

  drawPlayhead(g, pen) {
    const { axis, theme, position } = this.player, { engine } = this, bottom = this.height - TICKS + 1;
    if (pen.now >= 0 && position < axis.ends[this.e][pen.now]) {
      const left = pen.begin(pen.now), width = Math.max(pen.finish(pen.now) - left, 2);
      g.strokeStyle = g.fillStyle = theme.accent;
      g.lineWidth = 2;
      g.strokeRect(left, this.top - 1, width, bottom - this.top + 1);
    }
    const end = pen.finish(engine.count - 1), text = `done after ${plural(engine.count, "iteration")}`;
    if (this.view.saysDone && pen.now === engine.count - 1 && this.width - end > g.measureText(text).width + 16) {
      g.fillStyle = theme.dim;
      g.textAlign = "left";
      g.fillText(text, end + 8, this.top + Math.max(this.h, 12) / 2);
    }
  }

  drawGutter(g, pen) {
    g.textAlign = "right";
    g.fillStyle = pen.theme.dim;
    this.view.gutter(g, pen, this.view.rows(this.engine));
  }

  tip({ row, i, y }) {
    return this.view.tip(this.player, this.engine, row, i, y);
  }

  why({ row, i }) {
    return this.view.why?.(this.player, this.engine, row, i);
  }

  pick({ row, i, y }) {
    return this.view.pick(this.engine, row, i, y);
  }

  // {row, i, y} under a point of the canvas, or null. row is -1 outside the rows.
  hit(x, y) {
    const { axis, scale, from } = this.player, value = from + (x - GUTTER) / scale, i = axis.at(this.e, value);
    if (x < GUTTER || i < 0 || value > axis.ends[this.e][i]) return null;
    const row = Math.floor((y - this.top) / this.h);
    return { i, row: row >= 0 && row < this.view.rows(this.engine) ? row : -1, y: y - this.top };
  }
}

// The names of rows: "batch slot 0", "1", "2" ..., and of the lanes above them.
const rowNames = (word) => (g, pen, rows) => {
  const every = Math.ceil(12 / pen.h);
  for (let row = 0; row < rows; row += every) {
    g.fillText(row === 0 && rows > 1 ? `${word} 0` : rows === 1 ? word : String(row), GUTTER - 6, pen.y(row) + Math.max(pen.h, 10) / 2 + 0.5);
  }
  g.fillText("in", GUTTER - 6, IN);
  g.fillText("out", GUTTER - 6, OUT);
};

// A panel's view is an object with: name; height(player, engine, width), in px; draw(g, pen) of iteration pen.now (-1:
// before the first); words(player, engine, i), lines of text below it, each [name, text] or [name, text, what the name means];
// tip(player, engine, x, y, i, width) and pick(engine, x, y, i, width).
class Panel {
  constructor(player, e, view) {
    Object.assign(this, { player, e, view, engine: player.engines[e], widths: new Map() });
    this.node = element("div", "te-panel");
    this.canvas = this.node.appendChild(canvasOf(this.engine, view));
    this.lines = this.node.appendChild(element("dl", "te-lines"));
  }

  resize(width, dpr) {
    this.width = width;
    this.height = this.view.height(this.player, this.engine, width);
    setSize(this.canvas, width, this.height, dpr);
    this.drawn = null;
  }

  pen() {
    const { engine, width, height, widths, player } = this, { theme, follow } = player;
    return {
      engine, width, height, widths, theme, follow, requests: player.labels, phases: player.data.phases,
      hue: (request) => theme.hues[request % theme.hues.length], now: player.axis.at(this.e, player.position),
    };
  }

  draw(from, plot, dpr) {
    const pen = this.pen(), key = `${pen.now} ${this.player.version}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const g = this.canvas.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    g.font = `11px ${pen.theme.font}`;
    g.textBaseline = "middle";
    g.lineJoin = "round";
    this.view.draw(g, pen);
    this.write(this.view.words(this.player, this.engine, pen.now));
  }

  write(lines) {
    while (this.lines.children.length < 2 * lines.length) this.lines.append(element("dt", ""), element("dd", ""));
    while (this.lines.children.length > 2 * lines.length) this.lines.lastChild.remove();
    lines.forEach(([name, text, meaning = ""], n) => {
      const [term, said] = [this.lines.children[2 * n], this.lines.children[2 * n + 1]];
      setText(term, name);
      setText(said, text);
      term.title = meaning;
      said.dataset.testid = name;
    });
  }

  hit(x, y) {
    const i = this.pen().now;
    return i < 0 ? null : { i, x, y, row: 0 };
  }

  tip({ x, y, i }) {
    return this.view.tip(this.player, this.engine, x, y, i, this.width);
  }

  pick({ x, y, i }) {
    return this.view.pick(this.engine, x, y, i, this.width);
  }
}

const dimmed = (pen, request) => pen.follow !== null && request !== pen.follow;
