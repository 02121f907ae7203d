// Part 3 of 4 of the player: what is drawn. A view draws one engine; a Strip shows a view on a canvas, under the
// playhead. A further view is one more object in VIEWS.

const JUMPS = ["admit", "finish", "preempt", "abort"]; // the events worth a mark, and a stop of the jump buttons

// A view: rows(engine) and rowHeight(engine) in px, paint(g, pen) for what does not move, labels(g, pen) for what stays in
// sight while the window moves, tip(player, engine, row, i) for the tooltip. A pen (Strip.pen) knows where iteration i
// begins and finishes and where a row lies, in px; its first and end bound the iterations to paint.
const slotTimeline = {
  name: "slot timeline",
  rows: (engine) => engine.slots,
  rowHeight: (engine) => Math.max(5, Math.min(24, Math.floor(400 / engine.slots))),

  paint(g, pen) {
    paintIdle(g, pen);
    for (const run of pen.engine.runs) if (run.end > pen.first && run.first < pen.end) paintRun(g, pen, run);
    pen.engine.held.forEach((stretch) => paintStretch(g, pen, stretch, [1, 3], true));
    pen.engine.preempted.forEach((stretch) => paintStretch(g, pen, stretch, [4, 3], false));
    for (const event of pen.engine.events) paintEvent(g, pen, event);
    g.globalAlpha = 1;
  },

  labels(g, pen) {
    if (pen.h < 11) return;
    for (const stay of pen.engine.stays) {
      const start = pen.begin(stay.first), cell = pen.finish(stay.first) - start;
      const shift = cell < 30 && stay.end > stay.first + 1 ? cell : 0; // past a prefill's hatching
      const left = Math.max(start + shift, GUTTER), room = pen.finish(stay.end - 1) - left - 5;
      if (room < 12 || left > pen.width) continue;
      const future = stay.first > pen.now ? 2 * FUTURE : 1;
      g.globalAlpha = future * (dimmed(pen, stay.request) ? UNFOLLOWED : 1);
      const text = fit(g, pen, pen.requests[stay.request], Math.min(room, pen.width - left));
      const middle = pen.y(stay.row) + pen.h / 2 + 0.5;
      g.strokeStyle = pen.hue(stay.request).pale; // a halo, so that hatching does not run through the letters
      if (!shift) g.strokeText(text, left + 4, middle);
      g.fillText(text, left + 4, middle);
    }
    g.globalAlpha = 1;
  },

  tip(player, engine, row, i) {
    const run = engine.run(row, i), where = `iteration ${i}, batch slot ${row}`;
    if (!run) {
      const at = ([r, , first, end]) => r === row && first <= i && i < end;
      const held = engine.held.find(at), lost = engine.preempted.find(at);
      if (held) return [`${player.label(held[1])}: in the batch, but no tokens of the budget were left`, where];
      return [lost ? `idle; ${player.label(lost[1])} was preempted` : "idle", where];
    }
    const start = run.at(i), emitted = run.emitted(i);
    const positions = run.size === 1 ? `position ${start}` : `positions ${start} to ${start + run.size - 1}`;
    const first = start + run.size - run.draft - engine.records[run.request][0];
    const text = engine.pieces[run.request]?.slice(first, first + emitted.length).join("");
    return [
      `${player.label(run.request)}: ${player.data.phases[run.phase]}`, where,
      `${plural(run.size, "token")}, ${positions}` + (run.draft ? `; ${plural(run.draft, "guess", "guesses")}, ${run.rejected(i)} wrong` : ""),
      emitted.length ? `emitted token${emitted.length > 1 ? "s" : ""} ${emitted.join(", ")}` + (text ? ` ${JSON.stringify(text)}` : "") : "emitted no token",
    ];
  },
};

const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

const VIEWS = [slotTimeline];

const dimmed = (pen, request) => pen.follow !== null && request !== pen.follow;

function paintIdle(g, pen) {
  const { engine, h } = pen, height = pen.y(engine.slots) - LANES;
  g.fillStyle = pen.theme.idle;
  for (const [first, end] of pieces(pen, { first: 0, end: engine.count })) {
    const left = pen.begin(first), right = pen.finish(end - 1);
    for (let row = 0; row <= engine.slots; row++) g.fillRect(left, pen.y(row), right - left, h < 8 ? 0.5 : 1);
    for (let i = first; i < end; i++) if (pen.cell >= 7 || i === first) g.fillRect(pen.begin(i), LANES, 1, height);
    g.fillRect(right - 1, LANES, 1, height);
  }
}

function paintRun(g, pen, run) {
  const phase = pen.phases[run.phase], hue = pen.hue(run.request), top = pen.y(run.row) + 1;
  const height = pen.h - (pen.h < 8 ? 0.5 : 1);
  g.globalAlpha = dimmed(pen, run.request) ? UNFOLLOWED : 1;
  for (const [first, end] of pieces(pen, run)) {
    const left = pen.begin(first), width = Math.max(pen.finish(end - 1) - left, 0.5);
    const small = width < 5 || height < 7;
    g.fillStyle = phase === "decode" ? hue.pale : small ? hue.full : hatch(pen.theme, hue, phase);
    g.fillRect(left, top, width, height);
    if (pen.cell >= 7) {
      g.fillStyle = pen.theme.bg;
      for (let i = first + 1; i < end; i++) g.fillRect(pen.begin(i), top, 1, height);
    }
    g.strokeStyle = hue.edge;
    if (!small) g.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
    g.fillStyle = hue.full;
    if (small && first === run.first) g.fillRect(left, top, Math.min(1, width), height);
  }
}

// The parts of a run without a gap: on the clock of seconds, iterations need not touch.
function pieces(pen, run) {
  const found = [], first = Math.max(run.first, pen.first), end = Math.min(run.end, pen.end);
  for (let i = first, from = first; i < end; i++) {
    if (i + 1 < end && pen.begin(i + 1) - pen.finish(i) < 1) continue;
    found.push([from, i + 1]);
    from = i + 1;
  }
  return found;
}

function paintStretch(g, pen, [row, request, from, to], dash, asLine) {
  const first = Math.max(from, pen.first), end = Math.min(to, pen.end);
  if (first >= end) return;
  const left = pen.begin(first), width = pen.finish(end - 1) - left, top = pen.y(row);
  g.globalAlpha = dimmed(pen, request) ? UNFOLLOWED : 1;
  g.strokeStyle = pen.hue(request).edge;
  g.setLineDash(dash);
  g.lineWidth = 1.5;
  if (asLine) line(g, left, top + pen.h / 2, left + width, top + pen.h / 2);
  else g.strokeRect(left + 1.5, top + 2, width - 3, pen.h - 3);
  g.setLineDash([]);
  g.lineWidth = 1;
}

// Upper lane: into the batch. Lower lane: out of it.
function paintEvent(g, pen, [iteration, kind, request]) {
  const i = Math.min(iteration, pen.engine.count - 1);
  if (!JUMPS.includes(kind) || i < pen.first || i >= pen.end) return;
  g.globalAlpha = dimmed(pen, request) ? UNFOLLOWED : 1;
  const share = { preempt: 0.25, abort: 0.75 }[kind] ?? 0.5; // beside a finish in the same iteration, not on it
  const x = pen.begin(i) + (pen.finish(i) - pen.begin(i)) * share;
  mark(g, kind, x, kind === "admit" ? IN : OUT, pen.theme, pen.cell / 2);
}

// One view of one engine on one canvas. What does not move is painted once, on a tile about two windows wide, and
// copied for each frame: bright up to the playhead, faint beyond.
class Strip {
  constructor(player, e, view) {
    Object.assign(this, { player, e, view, engine: player.engines[e], tile: new OffscreenCanvas(1, 1) });
    this.h = view.rowHeight(this.engine);
    this.height = LANES + view.rows(this.engine) * this.h + TICKS;
    this.canvas = document.createElement("canvas");
    this.canvas.dataset.engine = this.engine.name;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${view.name} of ${this.engine.name}; the caption tells each frame in words`);
    this.widths = new Map();
  }

  resize(width, dpr) {
    this.width = width;
    this.canvas.width = Math.round(width * dpr);
    this.canvas.height = Math.round(this.height * dpr);
    this.canvas.style.height = `${this.height}px`;
  }

  pen(toX) {
    const { engine, e, h, width, widths, player } = this, { axis, theme, follow, data, scale } = player;
    const snap = (value) => Math.round(toX(value)); // whole pixels: crisp edges, no seams between neighbours
    return {
      engine, e, h, width, widths, theme, follow, phases: data.phases, requests: player.labels,
      y: (row) => LANES + row * h, hue: (request) => theme.hues[request % theme.hues.length],
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
    for (let n = Math.ceil(from / step); n * step <= from + plot / scale; n++) {
      const value = n * step, text = inTime ? seconds(value, step) : String(value);
      const x = GUTTER + (value + (inTime ? 0 : 0.5) - from) * scale, half = g.measureText(text).width / 2;
      if (value < axis.length && x + half < GUTTER + plot) g.fillText(text, Math.max(x, GUTTER + half), y);
    }
  }

  drawPlayhead(g, pen) {
    const { axis, theme, position } = this.player, { engine } = this, bottom = this.height - TICKS + 1;
    if (pen.now >= 0 && position < axis.ends[this.e][pen.now]) {
      const left = pen.begin(pen.now), width = Math.max(pen.finish(pen.now) - left, 2);
      g.strokeStyle = g.fillStyle = theme.accent;
      g.lineWidth = 2;
      g.strokeRect(left, LANES - 1, width, bottom - LANES + 1);
    }
    const end = pen.finish(engine.count - 1), text = `done after ${engine.count} iterations`;
    if (pen.now === engine.count - 1 && this.width - end > g.measureText(text).width + 16) {
      g.fillStyle = theme.dim;
      g.textAlign = "left";
      g.fillText(text, end + 8, LANES + this.h / 2);
    }
  }

  drawGutter(g, pen) {
    const rows = this.view.rows(this.engine), every = Math.ceil(12 / this.h);
    g.textAlign = "right";
    g.fillStyle = pen.theme.dim;
    for (let row = 0; row < rows; row += every) {
      g.fillText(row === 0 && rows > 1 ? "slot 0" : rows === 1 ? "slot" : String(row), GUTTER - 6, pen.y(row) + Math.max(this.h, 10) / 2 + 0.5);
    }
    g.fillText("in", GUTTER - 6, IN);
    g.fillText("out", GUTTER - 6, OUT);
  }

  // {row, i} under a point of the canvas, or null. row is -1 outside the cells.
  hit(x, y) {
    const { axis, scale, from } = this.player, value = from + (x - GUTTER) / scale, i = axis.at(this.e, value);
    if (x < GUTTER || i < 0 || value > axis.ends[this.e][i]) return null;
    const row = Math.floor((y - LANES) / this.h);
    return { i, row: row >= 0 && row < this.view.rows(this.engine) ? row : -1 };
  }
}
