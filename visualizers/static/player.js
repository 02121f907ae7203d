// Draws what visualizers/frames.py sends; its docstring describes the data. One ES module, no dependency: anywidget
// loads it in Jupyter (default export), the one-file page calls mount(element, text).
//
// Data -> Engine (indexed) -> Axis (the common clock) -> Strip (one canvas: a view of one engine) -> Player (playhead,
// controls, readouts). A further view is one more object in VIEWS.

const GUTTER = 52; // px left of the cells, for the names of the rows
const LANES = 22; // px above the cells, for the marks of events
const TICKS = 18; // px below the cells, for the numbers of the iterations
const NARROWEST = 3, WIDEST = 64; // px per iteration: below, the window scrolls; above, cells only waste space
const SPEEDS = [1, 2, 5, 10, 20, 50, 100, 200]; // iterations per second
const FUTURE = 0.16, UNFOLLOWED = 0.2; // opacity
const JUMPS = ["admit", "finish", "preempt", "abort"];
const ICONS = {
  play: "M4 2l10 6-10 6z", pause: "M4 2h3v12H4zM9 2h3v12H9z",
  back: "M3 2h2v12H3zM13 2v12L6 8z", forward: "M11 2h2v12h-2zM3 2v12l7-6z",
  previous: "M8 2v12L1 8zM15 2v12L8 8z", next: "M1 2v12l7-6zM8 2v12l7-6z",
  out: "M2 7h12v2H2z", in: "M2 7h12v2H2zM7 2h2v12H7z",
};

// ---------------------------------------------------------------- data

class Engine {
  constructor(sent) {
    Object.assign(this, sent);
    this.runs = sent.runs.map(([row, request, phase, first, length, start, size, tokens]) =>
      ({ row, request, phase, first, end: first + length, start, size, tokens }));
    this.count = this.time.length;
    this.cells = new Int32Array(this.slots * this.count).fill(-1); // index of the run in each cell
    this.running = new Int32Array(this.count);
    this.emitted = new Int32Array(this.count);
    this.runs.forEach((run, number) => this.enter(run, number));
    this.stays = staysOf(this.runs);
    this.queueChanges = this.waiting.map((change) => change[0]);
    const arrivals = Object.values(this.records).map((record) => record[2]);
    this.origin = [...arrivals, ...this.time].reduce((a, b) => Math.min(a, b), Infinity);
    this.busySoFar = sums(this.running);
    this.emittedSoFar = sums(this.emitted);
    this.paddingSoFar = sums(this.padding);
  }

  enter(run, number) {
    for (let i = run.first; i < run.end; i++) {
      this.cells[run.row * this.count + i] = number;
      this.running[i] += 1;
      this.emitted[i] += run.tokens[i - run.first] !== null;
    }
  }

  run(row, i) {
    return this.runs[this.cells[row * this.count + i]];
  }

  queue(i) {
    const place = after(this.queueChanges, i) - 1;
    return place < 0 ? [] : this.waiting[place][1];
  }

  figures(i) {
    const ran = i >= 0;
    return {
      iteration: ran ? `${i} of ${this.count - 1}` : "none yet",
      running: `${ran ? this.running[i] : 0} of ${this.slots}`,
      waiting: ran ? this.queue(i).length : 0,
      idle: (i + 1) * this.slots - (ran ? this.busySoFar[i] : 0),
      padding: ran ? this.paddingSoFar[i] : 0,
      tokens: ran ? this.emittedSoFar[i] : 0,
    };
  }
}

const sums = (counts) => {
  let sum = 0;
  return Array.from(counts, (count) => (sum += count));
};

// How many of the ascending values are <= value.
function after(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A stay: from a request's first run in a row to its last there. It carries one label.
function staysOf(runs) {
  const stays = [], latest = new Map();
  for (const run of runs) {
    const stay = latest.get(run.row);
    if (stay?.request === run.request) stay.end = run.end;
    else {
      latest.set(run.row, { row: run.row, request: run.request, first: run.first, end: run.end });
      stays.push(latest.get(run.row));
    }
  }
  return stays;
}

// The common clock. Engine e's iteration i lies at [begins[e][i], ends[e][i]), in iterations or in seconds.
class Axis {
  constructor(engines, clock) {
    this.clock = clock;
    const inTime = clock === "time";
    this.begins = engines.map((e) => e.time.map((time, i) => (inTime ? time - e.origin : i)));
    this.ends = engines.map((e, n) => e.duration.map((d, i) => (inTime ? this.begins[n][i] + d : i + 1)));
    this.stops = [...new Set(this.begins.flat())].sort((a, b) => a - b);
    this.last = this.stops.at(-1) ?? 0;
    this.length = this.ends.reduce((most, ends) => Math.max(most, ends.at(-1) ?? 0), 0);
    const longest = Math.max(...engines.map((e) => e.count));
    this.unit = this.length / longest || 1; // an iteration's mean width
  }

  at(e, value) {
    return after(this.begins[e], value) - 1; // the iteration under way or just over; -1: none yet
  }

  // The stop under the playhead, and its neighbour `way` (-1, 1) of it among `stops`.
  near(value, way, stops = this.stops) {
    const here = this.stops[after(this.stops, value) - 1] ?? 0;
    return way > 0 ? stops[after(stops, value)] : stops[after(stops, here) - 1 - stops.includes(here)];
  }
}

// ---------------------------------------------------------------- colours

function mix(a, b, share) {
  const part = (colour, n) => parseInt(colour.slice(1 + 2 * n, 3 + 2 * n), 16);
  return "#" + [0, 1, 2].map((n) =>
    Math.round(part(a, n) * (1 - share) + part(b, n) * share).toString(16).padStart(2, "0")).join("");
}

function isDark(element) {
  for (const name of ["--jp-layout-color0", "--vscode-editor-background"]) {
    if (!getComputedStyle(element).getPropertyValue(name)) continue;
    const probe = element.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`; // the browser turns any colour notation into rgb()
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    probe.remove();
    return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeOf(root, palette) {
  const style = getComputedStyle(root);
  const theme = Object.fromEntries(
    ["bg", "fg", "dim", "grid", "accent"].map((name) => [name, style.getPropertyValue(`--te-${name}`).trim()]));
  theme.font = style.fontFamily;
  theme.hues = palette.map((full) => ({
    full, pale: mix(full, theme.bg, 0.66), edge: mix(full, theme.fg, 0.3), line: mix(full, theme.bg, 0.75),
  }));
  theme.patterns = new Map();
  return theme;
}

// Hatching by phase: / prefill, \ chunk, x recompute. Decode has none.
function hatch(theme, hue, phase) {
  const key = `${hue.full} ${phase}`;
  if (!theme.patterns.has(key)) {
    const size = 6, sharp = 4, tile = new OffscreenCanvas(size * sharp, size * sharp), g = tile.getContext("2d");
    g.scale(sharp, sharp);
    g.fillStyle = hue.full;
    g.fillRect(0, 0, size, size);
    g.strokeStyle = hue.line;
    g.lineWidth = 1.3;
    for (const shift of [-size, 0, size]) {
      if (phase !== "chunk") line(g, shift - 1, size + 1, shift + size + 1, -1);
      if (phase !== "prefill") line(g, shift - 1, -1, shift + size + 1, size + 1);
    }
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / sharp));
    theme.patterns.set(key, pattern);
  }
  return theme.patterns.get(key);
}

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}

// ---------------------------------------------------------------- views
// A view: rows(engine) and rowHeight(engine), paint(g, pen) for what does not move, labels(g, pen) for what stays in
// sight while the window moves, tip(engine, row, i) for the tooltip. pen: {engine, e, axis, x, y, h, theme, ...}.

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
      const left = Math.max(pen.begin(stay.first), GUTTER), room = pen.finish(stay.end - 1) - left - 5;
      if (room < 12 || left > pen.width) continue;
      const future = stay.first > pen.now ? 2 * FUTURE : 1;
      g.globalAlpha = future * (dimmed(pen, stay.request) ? UNFOLLOWED : 1);
      const text = fit(g, pen, pen.requests[stay.request], Math.min(room, pen.width - left));
      g.strokeStyle = pen.hue(stay.request).pale; // a halo, so that hatching does not run through the letters
      g.strokeText(text, left + 4, pen.y(stay.row) + pen.h / 2 + 0.5);
      g.fillText(text, left + 4, pen.y(stay.row) + pen.h / 2 + 0.5);
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
    const start = run.start + (i - run.first) * run.size, token = run.tokens[i - run.first];
    const positions = run.size === 1 ? `position ${start}` : `positions ${start} to ${start + run.size - 1}`;
    const piece = engine.pieces[run.request]?.[start + run.size - engine.records[run.request][0]];
    return [
      `${player.label(run.request)}: ${player.data.phases[run.phase]}`, where,
      `${run.size} token${run.size === 1 ? "" : "s"}, ${positions}`,
      token === null ? "emitted no token" : `emitted token ${token}` + (piece === undefined ? "" : ` ${JSON.stringify(piece)}`),
    ];
  },
};

const VIEWS = [slotTimeline];

const dimmed = (pen, request) => pen.follow !== null && request !== pen.follow;

function paintIdle(g, pen) {
  const { engine, first, end, h } = pen, bottom = pen.y(engine.slots);
  g.fillStyle = pen.theme.grid;
  if (end <= first) return;
  const left = pen.begin(first), width = pen.finish(end - 1) - left;
  for (let row = 0; row <= engine.slots; row++) g.fillRect(left, pen.y(row), width, h < 8 ? 0.5 : 1);
  for (let i = first; i < end; i++) {
    if (pen.cell >= 7 || i === first) g.fillRect(pen.begin(i), LANES, 1, bottom - LANES);
  }
  g.fillRect(left + width - 1, LANES, 1, bottom - LANES);
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
  mark(g, kind, (pen.begin(i) + pen.finish(i)) / 2, kind === "admit" ? 5 : 15, pen.theme);
}

function mark(g, kind, x, y, theme) {
  g.fillStyle = g.strokeStyle = kind === "preempt" || kind === "abort" ? theme.accent : theme.fg;
  g.beginPath();
  if (kind === "admit") g.lineTo(x - 3.5, y - 3), g.lineTo(x + 3.5, y - 3), g.lineTo(x, y + 3.5), g.fill();
  else if (kind === "finish") g.rect(x - 2.5, y - 2.5, 5, 5), g.fill();
  else {
    g.lineWidth = 1.8;
    line(g, x - 3, y - 3, x + 3, y + 3);
    line(g, x - 3, y + 3, x + 3, y - 3);
    g.lineWidth = 1;
  }
}

// The text, or as much of it as has room.
function fit(g, pen, text, room) {
  const wide = (part) => {
    if (!pen.widths.has(part)) pen.widths.set(part, g.measureText(part).width);
    return pen.widths.get(part);
  };
  if (wide(text) <= room) return text;
  const short = text.replace(/^req /, "");
  const keep = Math.floor((short.length * room) / wide(short)) - 1;
  return wide(short) <= room ? short : keep > 1 ? `${short.slice(0, keep)}…` : "";
}

// ---------------------------------------------------------------- strip

// One view of one engine on one canvas. What does not move is painted once, on a tile about two windows wide, and
// copied for each frame: bright up to the playhead, faint beyond.
class Strip {
  constructor(player, e, view) {
    Object.assign(this, { player, e, view, engine: player.engines[e], tile: new OffscreenCanvas(1, 1), painted: "" });
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
    this.drawTicks(g, pen, from, plot);
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

  drawTicks(g, pen, from, plot) {
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
    g.fillText("in", GUTTER - 6, 5.5);
    g.fillText("out", GUTTER - 6, 15.5);
  }

  // {row, i} under a point of the canvas, or null. row is -1 outside the cells.
  hit(x, y) {
    const { axis, scale, from } = this.player, value = from + (x - GUTTER) / scale, i = axis.at(this.e, value);
    if (x < GUTTER || i < 0 || value > axis.ends[this.e][i]) return null;
    const row = Math.floor((y - LANES) / this.h);
    return { i, row: row >= 0 && row < this.view.rows(this.engine) ? row : -1 };
  }
}

function niceStep(least, smallest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, smallest)));
  return Math.max(smallest, [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least));
}

const seconds = (value, step) => step < 1e-3 ? `${+(value * 1e6).toPrecision(6)} µs`
  : step < 1 ? `${+(value * 1e3).toPrecision(6)} ms` : `${+value.toPrecision(6)} s`;

// ---------------------------------------------------------------- player

const icon = (name) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
const button = (act, name, title) =>
  `<button type="button" data-act="${act}" title="${title}" aria-label="${title}">${icon(name)}</button>`;
const select = (name, text, options = "") =>
  `<label>${text}<select data-testid="${name}" aria-label="${text}">${options}</select></label>`;
const HELP = "Keys: Space plays and pauses, Left and Right step, Shift+Left and Shift+Right jump between events, "
  + "Home and End go to the ends, plus and minus zoom, Escape follows all requests.";
const CONTROLS = `
<div class="te-bar">
  <span class="te-buttons">
    ${button("previous", "previous", "Previous event (Shift+Left)")}${button("back", "back", "Step back (Left)")}
    ${button("play", "play", "Play (Space)")}
    ${button("forward", "forward", "Step forward (Right)")}${button("next", "next", "Next event (Shift+Right)")}
  </span>
  <input type="range" min="0" value="0" data-testid="scrub" aria-label="Playhead">
  <output class="te-readout" data-testid="position"></output>
</div>
<div class="te-bar te-options">
  ${select("speed", "speed", SPEEDS.map((n) => `<option value="${n}">${n} iterations/s</option>`).join(""))}
  ${select("follow", "follow", '<option value="">all requests</option>')}
  ${select("clock", "clock", '<option value="iteration">by iteration</option><option value="time">by time</option>')}
  <span class="te-buttons">${button("out", "out", "Zoom out (minus)")}${button("in", "in", "Zoom in (plus)")}</span>
</div>`;
const FIGURES = [
  ["iteration", "iteration"], ["running", "running"], ["waiting", "waiting"], ["idle", "idle slot-steps so far"],
  ["padding", "padding rows so far"], ["tokens", "tokens out so far"],
];

class Player {
  constructor(host, text) {
    this.data = JSON.parse(text);
    this.labels = this.data.requests.map((request) => request[1]);
    this.engines = this.data.engines.map((sent) => new Engine(sent));
    this.longest = Math.max(...this.engines.map((engine) => engine.count));
    Object.assign(this, { position: 0, playing: false, follow: null, zoom: 0, version: 0, from: 0, pending: 0 });
    this.speed = SPEEDS.find((speed) => speed >= this.longest / 25) ?? SPEEDS.at(-1);
    this.strips = this.engines.flatMap((_, e) => VIEWS.map((view) => new Strip(this, e, view)));
    this.build(host);
    this.setClock("iteration");
    this.watch();
    this.restyle();
  }

  label(request) {
    return this.labels[request];
  }

  find(name) {
    return this.root.querySelector(`[data-testid="${name}"]`);
  }

  // ---- page

  build(host) {
    this.root = host.appendChild(document.createElement("div"));
    this.root.className = "te-player";
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", `Slot timeline of ${this.engines.map((e) => e.name).join(", ")}. ${HELP}`);
    this.root.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes "b" for "insert a cell below"
    this.root.innerHTML = CONTROLS;
    this.find("scrub").title = HELP;
    this.find("speed").value = this.speed;
    this.labels.forEach((label, number) => this.find("follow").add(new Option(label, number)));
    this.root.append(this.buildFigures(), ...this.engines.map((engine, e) => this.buildEngine(engine, e)));
    this.legend = this.root.appendChild(element("div", "te-legend"));
    this.tip = this.root.appendChild(element("div", "te-tip"));
    this.tip.hidden = true;
    this.bind();
  }

  buildFigures() {
    const table = element("table", "te-figures"), head = table.createTHead().insertRow();
    head.append(element("th", "", "at the playhead"), ...FIGURES.map(([, title]) => element("th", "", title)));
    for (const engine of this.engines) {
      const row = table.createTBody().insertRow();
      row.dataset.engine = engine.name;
      row.append(element("th", "", engine.name));
      for (const [name] of FIGURES) row.insertCell().dataset.testid = name;
    }
    return table;
  }

  buildEngine(engine, e) {
    const section = element("section", "te-engine"), caption = element("p", "te-caption");
    section.dataset.engine = engine.name;
    caption.append(element("b", "", engine.name), element("span", "te-words"), element("span", "te-note"));
    caption.querySelector(".te-words").dataset.testid = "caption";
    caption.querySelector(".te-note").dataset.testid = "note";
    section.append(caption, ...this.strips.filter((strip) => strip.e === e).map((strip) => strip.canvas));
    return section;
  }

  drawLegend() {
    const { theme } = this, items = [
      ...this.data.phases.map((phase) => [phase, (g) => swatch(g, theme, phase)]),
      ["idle", (g) => frame(g, theme.grid, [])],
      ["preempted, row still empty", (g) => frame(g, theme.hues[0].edge, [4, 3])],
      ["in the batch, no budget left", (g) => { frame(g, theme.grid, []); dots(g, theme); }],
      ["admitted", (g) => mark(g, "admit", 11, 7, theme)],
      ["finished", (g) => mark(g, "finish", 11, 7, theme)],
      ["preempted or aborted", (g) => mark(g, "preempt", 11, 7, theme)],
    ];
    this.legend.replaceChildren(...items.map(([text, paint]) => {
      const item = element("span", ""), canvas = element("canvas", ""), dpr = devicePixelRatio;
      [canvas.width, canvas.height] = [22 * dpr, 14 * dpr];
      const g = canvas.getContext("2d");
      g.scale(dpr, dpr);
      paint(g);
      canvas.setAttribute("aria-hidden", "true");
      item.append(canvas, text);
      return item;
    }));
  }

  // ---- what the user does

  bind() {
    this.root.addEventListener("click", (event) => this.act(event.target.closest("button")?.dataset.act));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.find("scrub").addEventListener("input", (event) => this.move(Number(event.target.value)));
    this.find("speed").addEventListener("change", (event) => (this.speed = Number(event.target.value)));
    this.find("clock").addEventListener("change", (event) => this.setClock(event.target.value));
    this.find("follow").addEventListener("change", ({ target }) => this.setFollow(target.value === "" ? null : +target.value));
    for (const strip of this.strips) {
      strip.canvas.addEventListener("pointermove", (event) => this.hover(strip, event));
      strip.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
      strip.canvas.addEventListener("click", (event) => this.pick(strip, event));
    }
  }

  act(name) {
    const acts = {
      play: () => (this.playing ? this.pause() : this.play()),
      back: () => this.jump(this.axis.near(this.position, -1)),
      forward: () => this.jump(this.axis.near(this.position, 1)),
      previous: () => this.jump(this.axis.near(this.position, -1, this.events)),
      next: () => this.jump(this.axis.near(this.position, 1, this.events)),
      in: () => this.setZoom(this.zoom + 1),
      out: () => this.setZoom(this.zoom - 1),
      first: () => this.jump(0),
      last: () => this.jump(this.axis.last),
      all: () => this.setFollow(null),
    };
    acts[name]?.();
  }

  key(event) {
    event.stopPropagation(); // a notebook around us has its own meaning for most keys
    const onButton = event.target.closest("button"), onSelect = event.target.closest("select");
    if (onSelect || event.ctrlKey || event.metaKey || event.altKey || (onButton && event.key === " ")) return;
    const act = {
      " ": "play", ArrowLeft: event.shiftKey ? "previous" : "back", ArrowRight: event.shiftKey ? "next" : "forward",
      Home: "first", End: "last", "+": "in", "=": "in", "-": "out", Escape: "all",
    }[event.key];
    if (!act) return;
    event.preventDefault();
    this.act(act);
  }

  play() {
    if (!this.longest) return;
    if (this.position >= this.axis.last) this.move(0);
    this.playing = true;
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.move(this.position + ((now - before) / 1000) * this.speed * this.axis.unit);
      before = now;
      if (this.position >= this.axis.last) return this.pause();
      this.ticking = requestAnimationFrame(tick);
    };
    this.ticking = requestAnimationFrame(tick);
    this.showPlaying();
  }

  pause() {
    this.playing = false;
    this.showPlaying();
  }

  showPlaying() {
    const play = this.root.querySelector('[data-act="play"]'), title = this.playing ? "Pause (Space)" : "Play (Space)";
    play.innerHTML = icon(this.playing ? "pause" : "play");
    play.title = title;
    play.setAttribute("aria-label", title);
    for (const caption of this.root.querySelectorAll(".te-caption")) {
      caption.setAttribute("aria-live", this.playing ? "off" : "polite"); // a screen reader cannot keep up with a film
    }
  }

  jump(position) {
    if (position === undefined) return;
    this.pause();
    this.move(position);
  }

  move(position) {
    this.position = Math.min(Math.max(position, 0), this.axis.last);
    this.request();
  }

  setClock(clock) {
    const kept = this.axis ? Math.max(0, this.axis.at(0, this.position)) : 0;
    this.axis = new Axis(this.engines, clock);
    this.position = this.axis.begins[0][kept] ?? 0;
    const scrub = this.find("scrub");
    scrub.step = clock === "iteration" ? 1 : "any";
    scrub.max = this.axis.last;
    this.setFollow(this.follow);
  }

  setFollow(request) {
    this.follow = request;
    this.find("follow").value = request ?? "";
    const found = this.engines.flatMap((engine, e) => engine.events
      .filter(([, kind, who]) => JUMPS.includes(kind) && (request === null || who === request))
      .map(([iteration]) => this.axis.begins[e][Math.min(iteration, engine.count - 1)]));
    this.events = [...new Set(found)].filter((value) => value !== undefined).sort((a, b) => a - b);
    this.repaint();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.repaint();
  }

  at(strip, event) {
    const box = strip.canvas.getBoundingClientRect();
    return strip.hit(event.clientX - box.left, event.clientY - box.top);
  }

  pick(strip, event) {
    const found = this.at(strip, event);
    if (!found) return;
    if (found.row < 0) return this.jump(this.axis.begins[strip.e][found.i]);
    const request = strip.engine.run(found.row, found.i)?.request ?? null;
    this.setFollow(request === this.follow ? null : request);
  }

  hover(strip, event) {
    const found = this.at(strip, event), inside = found && found.row >= 0;
    this.tip.hidden = !inside;
    if (!inside) return;
    this.tip.replaceChildren(...strip.view.tip(this, strip.engine, found.row, found.i).map((text) => element("div", "", text)));
    const box = this.root.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - this.tip.offsetWidth - 6))}px`;
    const below = y + 18 + this.tip.offsetHeight < box.height;
    this.tip.style.top = `${below ? y + 18 : Math.max(2, y - 10 - this.tip.offsetHeight)}px`;
  }

  // ---- what is drawn

  watch() {
    const restyle = () => this.restyle(), scheme = matchMedia("(prefers-color-scheme: dark)");
    const sized = new ResizeObserver(() => this.resize()), themed = new MutationObserver(restyle);
    sized.observe(this.root);
    themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
    scheme.addEventListener("change", restyle);
    this.unwatch = () => (sized.disconnect(), themed.disconnect(), scheme.removeEventListener("change", restyle));
  }

  restyle() {
    this.root.dataset.theme = isDark(this.root) ? "dark" : "light";
    this.theme = themeOf(this.root, this.data.palette);
    this.drawLegend();
    this.resize();
  }

  resize() {
    const width = this.strips[0].canvas.parentElement.clientWidth;
    if (!width) return; // not in a page yet, or in a folded output
    this.width = width;
    this.dpr = devicePixelRatio;
    this.strips.forEach((strip) => strip.resize(width, this.dpr));
    this.repaint();
  }

  repaint() {
    this.version += 1; // every tile is out of date
    this.request();
  }

  request() {
    this.pending ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = 0;
    if (!this.width) return;
    this.place();
    this.strips.forEach((strip) => strip.draw(this.from, this.plot, this.dpr));
    this.read();
  }

  // The window: `scale` px per unit of the axis, from axis value `from` on; the playhead stays in its right half.
  place() {
    const { axis } = this;
    this.plot = this.width - GUTTER - 2;
    const whole = this.plot / (axis.length || 1), widest = Math.max(whole, WIDEST / axis.unit);
    const plain = Math.min(Math.max(whole, NARROWEST / axis.unit), WIDEST / axis.unit);
    const steps = Math.ceil(Math.log2(widest / plain)), back = Math.ceil(Math.log2(plain / Math.min(whole, plain)));
    this.zoom = Math.min(Math.max(this.zoom, -back), steps);
    this.scale = Math.min(Math.max(plain * 2 ** this.zoom, Math.min(whole, plain)), widest);
    const shown = this.plot / this.scale, from = Math.min(this.position - 0.65 * shown, axis.length - shown);
    this.from = Math.round(Math.max(0, from) * this.scale) / this.scale;
    this.root.querySelector('[data-act="in"]').disabled = this.zoom === steps;
    this.root.querySelector('[data-act="out"]').disabled = this.zoom === -back;
  }

  read() {
    const now = this.engines.map((_, e) => this.axis.at(e, this.position));
    const key = `${now} ${this.follow}`, inTime = this.axis.clock === "time";
    const scrub = this.find("scrub"), where = this.longest === 0 ? "no iterations"
      : inTime ? seconds(this.position, this.axis.unit) : `iteration ${Math.max(...now)}`;
    if (document.activeElement !== scrub || Number(scrub.value) !== this.position) scrub.value = this.position;
    scrub.setAttribute("aria-valuetext", where);
    setText(this.find("position"), where);
    if (key === this.readout) return;
    this.readout = key;
    this.engines.forEach((engine, e) => this.readEngine(engine, now[e]));
  }

  readEngine(engine, i) {
    const name = CSS.escape(engine.name), inside = (part) => this.root.querySelector(`${part}[data-engine="${name}"]`);
    for (const [figure, value] of Object.entries(engine.figures(i))) {
      setText(inside("tr").querySelector(`[data-testid="${figure}"]`), String(value));
    }
    const section = inside("section"), words = section.querySelector(".te-words"), note = section.querySelector(".te-note");
    setText(words, i >= 0 ? engine.captions[i] : engine.count ? "before the first iteration" : "no iteration ran");
    setText(note, this.follow === null ? "" : `following ${this.label(this.follow)}: ${this.fate(engine, i)}`);
  }

  // Where the followed request is at iteration i, in words.
  fate(engine, i) {
    const run = engine.runs.find((run) => run.request === this.follow && run.first <= i && i < run.end);
    if (run) return slotTimeline.tip(this, engine, run.row, i).slice(0, 3).map((text, n) => (n ? text : this.data.phases[run.phase])).join(", ");
    const place = i >= 0 ? engine.queue(i).indexOf(this.follow) : -1;
    if (place >= 0) return `waiting, place ${place + 1} of the queue`;
    const gone = engine.events.find(([at, kind, who]) => who === this.follow && at <= i && (kind === "finish" || kind === "abort"));
    return gone ? `${gone[1] === "finish" ? "finished" : "aborted"} at iteration ${gone[0]}` : "not here";
  }

  destroy() {
    this.playing = false;
    cancelAnimationFrame(this.ticking);
    cancelAnimationFrame(this.pending);
    this.unwatch();
    this.root.remove();
  }
}

function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

function swatch(g, theme, phase) {
  g.fillStyle = phase === "decode" ? theme.hues[0].pale : hatch(theme, theme.hues[0], phase);
  g.fillRect(0, 0, 22, 14);
  frame(g, theme.hues[0].edge, []);
}

function frame(g, colour, dash) {
  g.strokeStyle = colour;
  g.setLineDash(dash);
  g.strokeRect(0.5, 0.5, 21, 13);
}

function dots(g, theme) {
  g.strokeStyle = theme.hues[0].edge;
  g.setLineDash([1, 3]);
  g.lineWidth = 1.5;
  line(g, 0, 7, 22, 7);
}

export function mount(host, text) {
  return new Player(host, text);
}

export default {
  render({ model, el }) {
    const player = mount(el, model.get("data"));
    return () => player.destroy();
  },
};
