// The slot timeline: rows are batch slots, columns are iterations (for what a view is, see strip.js).

const slotTimeline = {
  name: "slot timeline",
  top: LANES,
  saysDone: true,
  rows: (engine) => engine.slots,
  rowHeight: (engine) => Math.max(5, Math.min(24, Math.floor(400 / engine.slots))),
  gutter: rowNames("batch slot"),

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
      const left = Math.max(pen.begin(stay.first), GUTTER), right = Math.min(pen.finish(stay.end - 1), pen.width);
      if (right < left + 2) continue;
      nameStay(g, pen, stay, left, right);
    }
    g.globalAlpha = 1;
  },

  tip(player, engine, row, i) {
    const run = engine.run(row, i), where = `iteration ${i + 1}, batch slot ${row}`;
    if (run) return runInWords(player, engine, run, i, where);
    const at = ([r, , first, end]) => r === row && first <= i && i < end;
    const held = engine.held.find(at), lost = engine.preempted.find(at);
    if (held) return [`${player.label(held[1])}: in the batch, but no tokens of the budget were left`, where];
    return [lost ? `idle; ${player.label(lost[1])} was preempted` : "idle", where, whyIdle(player, engine, i)];
  },

  why: (player, engine, row, i) => (engine.held.some(([r, , first, end]) => r === row && first <= i && i < end) ? null : whyIdle(player, engine, i)),

  pick: (engine, row, i) => engine.run(row, i)?.request ?? null,

  legend(player) {
    const used = new Set(player.engines.flatMap((engine) => engine.runs.map((run) => run.phase)));
    const phases = player.data.phases.map((phase) => [phase, swatch(phase)]).filter((_, number) => used.has(number));
    const again = player.engines.some((engine) => engine.runs.some((run) => run.request >= player.data.palette.length)) ? [AGAIN] : [];
    return phases.concat(again, SLOT_LEGEND.filter(([, , has]) => !has || player.engines.some(has)));
  },
};

// Its name, and its prompt where there is room: inside on a plate, since hatching runs through letters; or else beside it, where
// the batch slot is idle.
function nameStay(g, pen, stay, left, right) {
  const whole = pen.requests[stay.request], middle = pen.y(stay.row) + pen.h / 2 + 0.5;
  const name = right - left < widthOf(g, pen, whole) + 5 ? whole.replace(/^req /, "") : whole, wide = widthOf(g, pen, name);
  const idle = Math.min(stay.next < pen.engine.count ? pen.begin(stay.next) : pen.width, pen.width) - right;
  const beside = right - left < wide + 5 && idle > wide + 8, room = right - left - (right - left < 30 ? 4 : 8);
  const begun = dimmed(pen, stay.request) ? UNFOLLOWED : 1, future = 1.5 * FUTURE * begun;
  g.globalAlpha = stay.first > pen.now ? future : begun;
  if (beside) {
    g.fillStyle = pen.theme.fg;
    return g.fillText(name, right + 4, middle);
  }
  const text = fit(g, pen, name, room), prompt = pen.prompts[stay.request], start = left + (room < wide + 4 ? 2 : 4);
  const write = (text, x) => {
    g.fillStyle = pen.hue(stay.request).pale;
    g.fillRect(x - 1, middle - 7, widthOf(g, pen, text) + 2, 13);
    g.fillStyle = pen.theme.fg;
    g.fillText(text, x, middle);
  };
  if (text) write(text, start);
  const told = prompt && text === name && room > wide + 46 ? fit(g, pen, prompt, room - wide - 12) : "";
  if (!told) return;
  const cut = pen.now < 0 ? 0 : pen.finish(pen.now); // what the playhead has not reached is as faint as the rest
  for (const [from, to, alpha] of [[0, cut, begun], [cut, pen.width, future]]) {
    g.save();
    g.beginPath();
    g.rect(from, pen.y(stay.row), to - from, pen.h);
    g.clip();
    g.globalAlpha = 0.75 * alpha;
    write(told, start + wide + 8);
    g.restore();
  }
}

function runInWords(player, engine, run, i, where) {
  const start = run.at(i), emitted = run.emitted(i);
  const positions = run.size === 1 ? `position ${start}` : `positions ${start} to ${start + run.size - 1}`;
  const first = start + run.size - run.draft - engine.records[run.request][0];
  const text = engine.text(run.request, first, first + emitted.length);
  const prompt = briefPrompt(player.prompts[run.request]);
  const lines = [
    `${player.label(run.request)}: ${player.data.phases[run.phase]}`, ...(prompt ? [prompt] : []), where,
    `${plural(run.size, "token")}, ${positions}` + (run.draft ? `; ${plural(run.draft, "guess", "guesses")}, ${run.rejected(i)} wrong` : ""),
    emitted.length ? `emitted token${emitted.length > 1 ? "s" : ""} ${emitted.join(", ")}` + (text ? ` ${JSON.stringify(text)}` : "") : "emitted no token",
  ];
  const holding = engine.memoryMap.at(i).find((holding) => holding.request === run.request);
  if (holding) lines.push(`holds ${holdingInWords(engine, holding, i)}`);
  return lines;
}

function holdingInWords(engine, holding, i) {
  const { block } = engine.memoryMap, parts = holding.parts.filter((part) => part.since <= i);
  const unit = (n) => Math.floor(n / block), count = parts.reduce((sum, part) => sum + part.past - part.slot, 0) / block;
  const joined = [];
  for (const { slot, past } of parts) {
    if (joined.at(-1)?.[1] === slot) joined.at(-1)[1] = past;
    else joined.push([slot, past]);
  }
  const names = joined.slice(0, 6).map(([slot, past]) => (unit(past - 1) > unit(slot) ? `${unit(slot)} to ${unit(past - 1)}` : unit(slot)));
  return `${plural(count, block === 1 ? "K/V slot" : "block")} (${names.join(", ")}${joined.length > 6 ? ", …" : ""})`;
}

function paintIdle(g, pen) {
  const { engine, h } = pen, height = pen.y(engine.slots) - pen.top;
  g.fillStyle = pen.theme.idle;
  for (const [first, end] of pieces(pen, { first: 0, end: engine.count })) {
    const left = pen.begin(first), right = pen.finish(end - 1);
    for (let row = 0; row <= engine.slots; row++) g.fillRect(left, pen.y(row), right - left, h < 8 ? 0.5 : 1);
    for (let i = first; i < end; i++) if (pen.cell >= 7 || i === first) g.fillRect(pen.begin(i), pen.top, 1, height);
    g.fillRect(right - 1, pen.top, 1, height);
  }
}

function paintRun(g, pen, run, row = run.row) {
  const phase = pen.phases[run.phase], hue = pen.hue(run.request), top = pen.y(row) + 1;
  const height = pen.h - (pen.h < 8 ? 0.5 : 1);
  g.globalAlpha = dimmed(pen, run.request) ? UNFOLLOWED : 1;
  for (const [first, end] of pieces(pen, run)) {
    const left = pen.begin(first), width = Math.max(pen.finish(end - 1) - left, 0.5);
    const small = width < 5 || height < 7;
    const plain = pen.h < 3 ? hue.mid : hue.pale; // in hair lines, pale hues cannot be told apart
    g.fillStyle = phase === "decode" ? plain : small ? hue.full : hatch(pen.theme, hue, phase);
    g.fillRect(left, top, width, height);
    if (pen.cell >= 7) {
      g.fillStyle = pen.theme.bg;
      for (let i = first + 1; i < end; i++) g.fillRect(pen.begin(i), top, 1, height);
    }
    g.strokeStyle = hue.edge;
    if (!small) g.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
    if (height >= 11) underline(g, pen.theme, run.request, left, top + height, width);
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

const AGAIN = ["same colour, underlined: another request", (g, theme) => {
  g.fillStyle = theme.hues[0].pale;
  g.fillRect(0, 0, 22, 14);
  underline(g, theme, theme.hues.length, 0, 14, 22);
  frame(g, theme.hues[0].edge);
}];

// The legend beyond the phases: [text, painter of a swatch of 22 x 14 px, whether an engine has it (always, if left out)].
const SLOT_LEGEND = [
  ["idle", (g, theme) => frame(g, theme.idle), (engine) => engine.busySoFar.at(-1) < engine.slots * engine.count],
  ["preempted, batch slot still empty", (g, theme) => frame(g, theme.hues[0].edge, [4, 3]), (engine) => engine.preempted.length],
  ["in the batch, not computed", (g, theme) => {
    frame(g, theme.idle);
    g.strokeStyle = theme.hues[0].edge;
    g.setLineDash([1, 3]);
    g.lineWidth = 1.5;
    line(g, 0, 7, 22, 7);
  }, (engine) => engine.held.length],
  ["admitted", (g, theme) => mark(g, "admit", 11, 7, theme)],
  ["finished", (g, theme) => mark(g, "finish", 11, 7, theme)],
  ["preempted or aborted", (g, theme) => mark(g, "preempt", 11, 7, theme),
    (engine) => engine.events.some(([, kind]) => kind === "preempt" || kind === "abort")],
];
