// Queue and lifecycles: one row per request, from its arrival to its end, with its first token and its longest gap.

const lifecycles = {
  name: "requests",
  top: 6,
  rows: (engine) => Math.max(1, engine.lives.size),
  rowHeight: (engine) => clamp(360 / Math.max(1, engine.lives.size), 0.5, 18),

  paint(g, pen) {
    [...pen.engine.lives.values()].forEach((life, row) => {
      g.globalAlpha = dimmed(pen, life.request) ? UNFOLLOWED : 1;
      paintWaiting(g, pen, life, row);
      for (const run of life.runs) if (run.end > pen.first && run.first < pen.end) paintRun(g, pen, run, row);
      paintMarks(g, pen, life, row);
    });
    for (const [, request, first, end] of pen.engine.held) {
      paintStretch(g, pen, [rowOf(pen.engine, request), request, first, end], [1, 3], true);
    }
    g.globalAlpha = 1;
  },

  labels(g, pen) {
    if (pen.h < 11) return;
    [...pen.engine.lives.values()].forEach((life, row) => {
      const end = life.runs.at(-1)?.end ?? life.end;
      if (end === null || life.arrive >= pen.engine.count) return;
      const right = pen.finish(clamp(end - 1, 0, pen.engine.count - 1)), text = lifeInNumbers(pen.engine, life);
      if (right < GUTTER || right + 8 > pen.width || end - 1 > pen.now) return;
      g.globalAlpha = dimmed(pen, life.request) ? UNFOLLOWED : 1;
      g.strokeStyle = pen.theme.bg;
      g.fillStyle = pen.theme.dim;
      g.strokeText(text, right + 8, pen.y(row) + pen.h / 2 + 0.5);
      g.fillText(text, right + 8, pen.y(row) + pen.h / 2 + 0.5);
    });
    g.globalAlpha = 1;
    g.fillStyle = pen.theme.fg;
  },

  gutter(g, pen) {
    const lives = [...pen.engine.lives.values()], every = Math.ceil(12 / pen.h);
    for (let row = 0; row < lives.length; row += every) {
      g.fillText(fit(g, pen, pen.requests[lives[row].request], GUTTER - 8), GUTTER - 6, pen.y(row) + Math.max(pen.h, 10) / 2 + 0.5);
    }
  },

  tip(player, engine, row, i) {
    const life = [...engine.lives.values()][row];
    if (!life) return ["no request has arrived"];
    const run = life.runs.find((run) => run.first <= i && i < run.end), gaps = lifeInWords(engine, life);
    const doing = run ? player.data.phases[run.phase] : player.fateOf(engine, life.request, i);
    return [`${player.label(life.request)}: ${doing}`, `iteration ${i + 1}`, ...gaps];
  },

  pick: (engine, row) => [...engine.lives.values()][row]?.request ?? null,

  legend: () => [
    ["waiting", (g, theme) => ((g.strokeStyle = theme.dim), line(g, 0, 7.5, 22, 7.5))],
    ["first token", (g, theme) => diamond(g, 11, 7, theme.fg, theme.bg)],
    ["longest gap between two tokens", (g, theme) => ((g.fillStyle = theme.accent), g.fillRect(1, 10, 20, 3))],
  ],
};

const rowOf = (engine, request) => [...engine.lives.keys()].indexOf(request);

const spanOf = (engine, time) => (engine.inIterations ? plural(+time.toPrecision(3), "iteration") : brief(time));

const lifeInWords = (engine, life) => [
  life.ttft === null ? "no token yet" : `first token after ${spanOf(engine, life.ttft)} (TTFT), ${life.first === null ? "before iteration 1" : `in iteration ${life.first + 1}`}`,
  ...(life.worst ? [`longest gap (TBT) ${spanOf(engine, life.gap)}, iterations ${life.worst[0] + 1} to ${life.worst[1] + 1}`] : []),
];

const lifeInNumbers = (engine, life) =>
  life.ttft === null ? "" : `TTFT ${spanOf(engine, life.ttft)}` + (life.worst ? `, worst TBT ${spanOf(engine, life.gap)}` : "");

// From its arrival, and from each loss of its memory, until it runs.
function paintWaiting(g, pen, life, row) {
  const y = Math.round(pen.y(row) + pen.h / 2), stop = life.end ?? pen.engine.count - 1;
  let from = life.arrive;
  g.fillStyle = pen.h < 4 ? pen.theme.grid : pen.theme.dim;
  for (const next of [...life.runs, { first: stop + 1, end: stop + 1 }]) {
    const first = Math.max(from, pen.first), end = Math.min(next.first, pen.end);
    if (first < end) g.fillRect(pen.begin(first), y, pen.finish(end - 1) - pen.begin(first), pen.h < 4 ? 0.5 : 1);
    from = next.end;
  }
}

function paintMarks(g, pen, life, row) {
  if (pen.h < 6) return;
  const inside = (i) => i >= pen.first - 1 && i <= pen.end;
  if (life.worst && pen.h >= 9 && life.worst[1] >= pen.first && life.worst[0] < pen.end) {
    const [from, to] = life.worst;
    g.fillStyle = pen.theme.accent;
    g.fillRect(pen.finish(from), pen.y(row) + pen.h - 3, Math.max(2, pen.finish(to) - pen.finish(from)), 3);
  }
  if (life.first !== null && inside(life.first)) diamond(g, pen.finish(life.first), pen.y(row) + pen.h / 2, pen.theme.fg, pen.theme.bg);
}

function diamond(g, x, y, fill, edge) {
  g.beginPath();
  g.moveTo(x, y - 5);
  g.lineTo(x + 4, y);
  g.lineTo(x, y + 5);
  g.lineTo(x - 4, y);
  g.closePath();
  g.fillStyle = fill;
  g.strokeStyle = edge;
  g.fill();
  g.stroke();
}
