// Batch composition: the rows of each iteration's batch stacked by kind under the token budget, and its duration below.

const KINDS = ["decode", "prefill", "chunk", "recompute", "guess", "padding"]; // from the bottom up
const BETWEEN = 14; // px
const stackHeight = (engine) => (engine.dense ? 54 : 96); // px
const durationHeight = (engine) => (engine.inIterations ? 0 : engine.dense ? 20 : 30); // px; 0 where all take the same

// Rows of iteration i by kind, in the order of KINDS; kept with the engine.
function compositionOf(engine, phases) {
  if (!engine.composition) {
    const counts = Object.fromEntries(KINDS.map((kind) => [kind, new Int32Array(engine.count)]));
    for (const run of engine.runs) for (let i = run.first; i < run.end; i++) {
      counts[phases[run.phase]][i] += run.size - run.draft;
      counts.guess[i] += run.draft;
    }
    counts.padding.set(engine.padding);
    const total = (i) => KINDS.reduce((sum, kind) => sum + counts[kind][i], 0), all = Array.from(engine.time, (_, i) => total(i));
    const budgets = engine.budget.filter((budget) => budget !== null);
    const [most, longest] = engine.tops;
    engine.composition = { counts, all, far: budgets.some((budget) => budget > most), most, longest };
  }
  return engine.composition;
}

const kindFill = (theme, kind, small) => {
  if (kind === "padding") return small ? theme.idle : hatch(theme, theme.grey, "recompute");
  if (kind === "guess") return small ? theme.hues[2].full : hatch(theme, theme.hues[2], "chunk");
  return kind === "decode" ? theme.hues[0].pale : small ? theme.hues[0].full : hatch(theme, theme.hues[0], kind);
};

// A slanted gap: this bar goes on above the axis. The tooltip has its number.
function paintCut(g, pen, left, right, top) {
  g.strokeStyle = pen.theme.bg;
  g.lineWidth = 2.5;
  line(g, left - 2, top + 9, Math.max(right, left + 3) + 2, top + 4);
  g.lineWidth = 1;
}

const composition = {
  name: "batch composition",
  top: 8,
  rows: () => 1,
  rowHeight: (engine) => stackHeight(engine) + (durationHeight(engine) && BETWEEN + durationHeight(engine)),

  paint(g, pen) {
    const stack = stackHeight(pen.engine), deep = durationHeight(pen.engine);
    const { counts, most, longest, far } = compositionOf(pen.engine, pen.phases), base = pen.top + stack, small = pen.cell < 5;
    for (let i = pen.first; i < pen.end; i++) {
      const left = pen.begin(i), right = pen.finish(i), width = Math.max(right - left - (pen.cell >= 5 ? 1 : 0), 0.5);
      let height = 0;
      for (const kind of KINDS) {
        if (!counts[kind][i]) continue;
        const bottom = Math.max(base - (stack * height) / most, 0), size = Math.min((stack * counts[kind][i]) / most, bottom);
        height += counts[kind][i];
        g.fillStyle = kindFill(pen.theme, kind, small || size < 3);
        g.fillRect(left, bottom - size, width, size);
        g.strokeStyle = kind === "padding" ? pen.theme.idle : pen.theme.hues[kind === "guess" ? 2 : 0].edge;
        if (!small && size > 2) g.strokeRect(left + 0.5, bottom - size + 0.5, width - 1, size - 1);
      }
      if (height > most) paintCut(g, pen, left, right, 0);
      const tall = Math.min(deep, (deep * pen.engine.duration[i]) / longest);
      g.fillStyle = pen.theme.dim;
      g.fillRect(left, base + BETWEEN + deep - tall, width, tall);
      if (deep && pen.engine.duration[i] > longest) paintCut(g, pen, left, right, base + BETWEEN);
      if (far || pen.engine.budget[i] === null) continue;
      const y = Math.round(base - (stack * pen.engine.budget[i]) / most);
      g.fillStyle = pen.theme.accent;
      g.fillRect(left, y - 1, Math.max(right - left, 1), 2);
    }
    g.fillStyle = pen.theme.idle;
    const end = pen.finish(pen.end - 1) - pen.begin(pen.first);
    for (const y of deep ? [base, base + BETWEEN + deep] : [base]) if (end > 0) g.fillRect(pen.begin(pen.first), y, end, 1);
  },

  labels(g, pen) {
    if (!compositionOf(pen.engine, pen.phases).far) return;
    g.fillStyle = pen.theme.accent;
    g.textAlign = "left";
    const budget = pen.engine.budget[Math.max(pen.now, 0)];
    g.strokeStyle = pen.theme.bg;
    const text = budget === null ? "" : `budget ${budget}, far above`;
    g.strokeText(text, GUTTER + 6, pen.top + 4);
    g.fillText(text, GUTTER + 6, pen.top + 4);
    g.fillStyle = pen.theme.fg;
  },

  gutter(g, pen) {
    const stack = stackHeight(pen.engine), deep = durationHeight(pen.engine);
    const { most, longest } = compositionOf(pen.engine, pen.phases), base = pen.top + stack;
    g.fillText(String(most), GUTTER - 6, pen.top + 5);
    g.fillText(most === 1 ? "row" : "rows", GUTTER - 6, pen.top + stack / 2);
    g.fillText("0", GUTTER - 6, base - 4);
    if (deep) g.fillText(brief(longest), GUTTER - 6, base + BETWEEN + deep / 2);
  },

  tip(player, engine, row, i) {
    const { counts, all } = compositionOf(engine, player.data.phases);
    const parts = KINDS.filter((kind) => counts[kind][i]).map((kind) => `${counts[kind][i]} ${kind}`);
    const budget = engine.budget[i] === null ? "no token budget" : `a budget of ${plural(engine.budget[i], "token")}`;
    const took = engine.inIterations ? "" : `; took ${brief(engine.duration[i])}`;
    return [`iteration ${i + 1}: ${plural(all[i], "row")}`, parts.join(", "), budget + took];
  },

  pick: () => null,

  legend(player) {
    const used = KINDS.filter((kind) => player.engines.some((engine) => compositionOf(engine, player.data.phases).counts[kind].some(Boolean)));
    const swatches = used.map((kind) => [kind, (g, theme) => {
      g.fillStyle = kindFill(theme, kind, false);
      g.fillRect(0, 0, 22, 14);
      frame(g, kind === "padding" ? theme.idle : theme.hues[kind === "guess" ? 2 : 0].edge);
    }]);
    const budget = player.engines.some((engine) => !compositionOf(engine, player.data.phases).far && engine.budget.some((budget) => budget !== null));
    const line = ["token budget", (g, theme) => ((g.fillStyle = theme.accent), g.fillRect(0, 6, 22, 2))];
    const timed = player.engines.some((engine) => !engine.inIterations);
    return [...swatches, ...(budget ? [line] : []), ...(!timed ? [] : [["duration", (g, theme) => ((g.fillStyle = theme.dim), g.fillRect(6, 4, 10, 10))]])];
  },
};
