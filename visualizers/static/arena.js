// The K/V memory map: every address of the arena over time (a strip), and the arena at the playhead (a panel).

const arenaHeight = (engine) => (engine.dense ? 92 : 170); // px of all addresses

const arenaOverTime = {
  name: "K/V arena over time",
  top: 6,
  rows: (engine) => 1,
  rowHeight: (engine) => (engine.memoryMap.empty ? 20 : arenaHeight(engine)),

  paint(g, pen) {
    const map = pen.engine.memoryMap;
    if (map.empty) return;
    const y = (slot) => pen.top + (pen.h * slot) / map.shown;
    for (const holding of map.holdings) {
      if (holding.end <= pen.first || holding.first >= pen.end) continue;
      g.globalAlpha = dimmed(pen, holding.request) ? UNFOLLOWED : 1;
      for (const part of holding.parts) if (part.since < pen.end) paintPart(g, pen, holding, part, y);
    }
    g.globalAlpha = 1;
    paintShared(g, pen, map, y);
    g.fillStyle = pen.theme.idle;
    const left = pen.begin(Math.max(0, pen.first)), width = pen.finish(pen.end - 1) - left;
    for (const edge of [pen.top, pen.top + pen.h - 1]) g.fillRect(left, edge, width, 1);
  },

  labels(g, pen) {
    if (!pen.engine.memoryMap.empty) return;
    g.fillStyle = pen.theme.dim;
    g.fillText("this trace has no memory map", GUTTER + 4, pen.top + 10);
  },

  gutter(g, pen) {
    const map = pen.engine.memoryMap;
    if (map.empty) return;
    g.fillText(map.block === 1 ? "K/V slot 0" : "block 0", GUTTER - 6, pen.top + 6);
    g.fillText(String(map.shown / map.block), GUTTER - 6, pen.top + pen.h - 6);
  },

  tip(player, engine, row, i, y) {
    const map = engine.memoryMap;
    if (map.empty) return ["this trace has no memory map"];
    const slot = slotUnder(engine, y), name = map.block === 1 ? `K/V slot ${slot}` : `block ${Math.floor(slot / map.block)}`;
    const owners = ownersOf(map, slot, i);
    if (!owners.length) return [`${name}: free`, `iteration ${i + 1}`];
    return [
      `${name}: ${owners.map((holding) => player.label(holding.request)).join(", ")}`, `iteration ${i + 1}`,
      ...owners.map((holding) => `${player.label(holding.request)} holds ${holdingInWords(engine, holding, i)}, ${holding.used[i - holding.first]} K/V slots filled`),
    ];
  },

  pick: (engine, row, i, y) => {
    const map = engine.memoryMap;
    return map.empty ? null : ownersOf(map, slotUnder(engine, y), i)[0]?.request ?? null;
  },

  legend: (player) => [
    ["K/V filled", (g, theme) => ((g.fillStyle = theme.hues[0].mid), g.fillRect(0, 0, 22, 14), frame(g, theme.hues[0].edge))],
    ["held, empty", (g, theme) => ((g.fillStyle = emptyFill(theme, theme.hues[0])), g.fillRect(0, 0, 22, 14), frame(g, theme.hues[0].edge))],
    ...(player.engines.some((engine) => engine.contiguous && !engine.memoryMap.empty)
      ? [["free, but the hole is not the largest", (g, theme) => ((g.fillStyle = lostFill(theme)), g.fillRect(0, 0, 22, 14), frame(g, theme.accent))]] : []),
    ...(player.engines.some((engine) => engine.memoryMap.shares)
      ? [["shared by several requests", (g, theme) => ((g.fillStyle = theme.hues[0].mid), g.fillRect(0, 0, 22, 14), (g.lineWidth = 2), g.setLineDash([]), (g.strokeStyle = theme.fg), g.strokeRect(1, 1, 20, 12))]] : []),
  ],
};

const slotUnder = (engine, y) => Math.floor((clamp(y, 0, arenaHeight(engine) - 1) * engine.memoryMap.shown) / arenaHeight(engine));

const ownersOf = (map, slot, i) =>
  map.at(i).filter((holding) => holding.parts.some((part) => part.since <= i && part.slot <= slot && slot < part.past));

const emptyFill = (theme, hue) => hatch(theme, { full: hue.wash, line: hue.pale }, "prefill");
const lostFill = (theme) => hatch(theme, { full: theme.bg, line: theme.accent }, "chunk");

// A part of a holding: light for as long as it is held, and solid as far as it is filled.
function paintPart(g, pen, holding, part, y) {
  const hue = pen.hue(holding.request), first = Math.max(part.since, pen.first), end = Math.min(holding.end, pen.end);
  if (first >= end) return;
  const left = pen.begin(first), right = pen.finish(end - 1), top = y(part.slot), height = y(part.past) - top;
  g.fillStyle = height < 2 ? hue.pale : emptyFill(pen.theme, hue);
  g.fillRect(left, top, right - left, height);
  g.fillStyle = hue.mid;
  g.beginPath();
  g.moveTo(left, top);
  for (let i = first; i < end; i++) {
    const filled = holding.filled(part, i), full = holding.staysFull(part, i), depth = y(part.slot + filled);
    g.lineTo(pen.begin(i), depth);
    g.lineTo(full ? right : pen.finish(i), depth);
    if (full) break;
  }
  g.lineTo(right, top);
  g.fill();
  if (height < 4) return;
  g.strokeStyle = hue.edge;
  g.strokeRect(left + 0.5, top + 0.5, right - left - 1, height - 1);
}

// Stretches of time in which a range had several holders.
function paintShared(g, pen, map, y) {
  if (!map.shares) return;
  const open = new Map();
  g.strokeStyle = pen.theme.fg;
  g.lineWidth = 1.5;
  for (let i = pen.first; i <= pen.end; i++) {
    const now = new Set(i < pen.end ? map.ranges(i).filter(([, , depth]) => depth > 1).map(([slot, past]) => `${slot} ${past}`) : []);
    for (const [key, since] of open) {
      if (now.has(key)) continue;
      const [slot, past] = key.split(" ").map(Number);
      g.strokeRect(pen.begin(since) + 1, y(slot) + 1, pen.finish(i - 1) - pen.begin(since) - 2, y(past) - y(slot) - 2);
      open.delete(key);
    }
    for (const key of now) if (!open.has(key)) open.set(key, i);
  }
  g.lineWidth = 1;
}

const MAP_ROW = 20; // px

const arenaNow = {
  name: "K/V arena at the playhead",

  height: (player, engine, width) => {
    const map = engine.memoryMap;
    return map.empty ? 0 : map.block === 1 ? 2 * MAP_ROW : 4 + blockGrid(map, width).rows * blockGrid(map, width).h;
  },

  draw(g, pen) {
    const map = pen.engine.memoryMap;
    if (map.empty) return;
    if (map.block === 1) drawRanges(g, pen, map);
    else drawBlocks(g, pen, map);
    g.globalAlpha = 1;
  },

  words(player, engine, i) {
    const map = engine.memoryMap;
    if (map.empty) return [];
    const { held, filled, lost } = map.figures(i), slots = `${thousands(held)} of ${thousands(map.size)} K/V slots`;
    const blocks = map.block > 1 ? `${thousands(held / map.block)} of ${thousands(map.size / map.block)} blocks, that is ` : "";
    const text = `held ${blocks}${slots} (${percent(held, map.size)}), filled ${thousands(filled)} (${percent(filled, map.size)}), `
      + `so ${percent(held - filled, held)} of what is held is empty`;
    return [["memory", text + (map.contiguous ? `; ${plural(lost, "free K/V slot")} outside the largest hole` : "")]];
  },

  tip(player, engine, x, y, i, width) {
    const map = engine.memoryMap, slot = slotAt(map, x, y, width);
    return slot === null ? null : arenaOverTime.tip(player, engine, 0, i, ((slot + 0.5) * arenaHeight(engine)) / map.shown);
  },

  pick(engine, x, y, i, width) {
    const map = engine.memoryMap, slot = slotAt(map, x, y, width);
    return slot === null ? null : ownersOf(map, slot, i)[0]?.request ?? null;
  },

  legend: () => [],
};

function slotAt(map, x, y, width) {
  if (map.empty || x < GUTTER) return null;
  if (map.block === 1) return clamp(Math.floor(((x - GUTTER) * map.shown) / (width - GUTTER - 2)), 0, map.shown - 1);
  const { columns, w, h } = blockGrid(map, width), block = Math.floor(y / h) * columns + Math.floor((x - GUTTER) / w);
  return (x - GUTTER) / w < columns && block < map.shown / map.block ? block * map.block : null;
}

function drawRanges(g, pen, map) {
  const plot = pen.width - GUTTER - 2, x = (slot) => Math.round(GUTTER + (plot * slot) / map.shown), i = pen.now, h = MAP_ROW;
  const bar = (slot, past, fill, edge) => {
    g.fillStyle = fill;
    g.fillRect(x(slot), 2, x(past) - x(slot), h);
    g.strokeStyle = edge;
    g.strokeRect(x(slot) + 0.5, 2.5, Math.max(0.5, x(past) - x(slot) - 1), h - 1);
  };
  g.strokeStyle = pen.theme.idle;
  g.strokeRect(x(0) + 0.5, 2.5, plot - 1, h - 1);
  for (const holding of i < 0 ? [] : map.at(i)) {
    const hue = pen.hue(holding.request);
    g.globalAlpha = dimmed(pen, holding.request) ? UNFOLLOWED : 1;
    for (const part of holding.parts) {
      if (part.since > i) continue;
      bar(part.slot, part.past, emptyFill(pen.theme, hue), hue.edge);
      const filled = holding.filled(part, i);
      if (filled) bar(part.slot, part.slot + filled, hue.mid, hue.edge);
      label(g, pen, pen.requests[holding.request], x(part.slot), x(part.past) - x(part.slot), 2 + h / 2, hue);
    }
  }
  g.globalAlpha = 1;
  for (const [slot, past] of i < 0 ? [] : map.lost(i)) bar(slot, Math.min(past, map.shown), lostFill(pen.theme), pen.theme.accent);
  g.fillStyle = pen.theme.dim;
  g.textAlign = "right";
  g.fillText("now", GUTTER - 6, 2 + h / 2);
  const step = niceStep((60 * map.shown) / plot, 1);
  for (let slot = 0; slot <= map.shown; slot += step) {
    g.textAlign = slot === 0 ? "left" : slot + step > map.shown ? "right" : "center";
    if (x(slot) < pen.width - 20 || slot === map.shown) g.fillText(String(slot), Math.min(x(slot), pen.width - 2), h + 11);
  }
}

function label(g, pen, text, left, width, middle, hue) {
  const shown = fit(g, pen, text, width - 6);
  if (width < 12 || !shown) return;
  g.textAlign = "left";
  g.fillStyle = hue.pale; // a plate: a halo alone lets the hatching through
  g.fillRect(left + 2, middle - 6.5, g.measureText(shown).width + 4, 13);
  g.fillStyle = pen.theme.fg;
  g.fillText(shown, left + 4, middle + 0.5);
}

function blockGrid(map, width) {
  const count = Math.max(1, map.shown / map.block), plot = width - GUTTER - 2;
  const w = [46, 34, 24, 16, 10, 6, 4].find((w) => Math.ceil(count / Math.floor(plot / w)) <= 5) ?? 3;
  const columns = Math.max(1, Math.floor(plot / w));
  return { w, h: w >= 24 ? MAP_ROW : w >= 10 ? 14 : Math.max(w, 4), columns, rows: Math.ceil(count / columns), count };
}

function drawBlocks(g, pen, map) {
  const { w, h, columns, count } = blockGrid(map, pen.width), i = pen.now;
  const place = (block) => [GUTTER + (block % columns) * w, 2 + Math.floor(block / columns) * h];
  const gap = w >= 10 ? 2 : 0;
  g.strokeStyle = pen.theme.idle;
  for (let block = 0; block < count; block++) {
    const [x, y] = place(block);
    if (gap) g.strokeRect(x + 0.5, y + 0.5, w - gap - 1, h - gap - 1);
  }
  const shared = i < 0 ? [] : map.ranges(i).filter(([, , depth]) => depth > 1);
  for (const holding of i < 0 ? [] : map.at(i)) for (const part of holding.parts) {
    if (part.since > i) continue;
    const hue = pen.hue(holding.request);
    g.globalAlpha = dimmed(pen, holding.request) ? UNFOLLOWED : 1;
    for (let slot = part.slot; slot < part.past; slot += map.block) {
      const [x, y] = place(slot / map.block), filled = clamp(holding.filled(part, i) - (slot - part.slot), 0, map.block);
      if (filled < map.block) {
        g.fillStyle = gap ? emptyFill(pen.theme, hue) : hue.pale;
        g.fillRect(x, y, w - gap, h - gap);
      }
      g.fillStyle = hue.mid;
      g.fillRect(x, y, ((w - gap) * filled) / map.block, h - gap);
      g.strokeStyle = hue.edge;
      if (gap) g.strokeRect(x + 0.5, y + 0.5, w - gap - 1, h - gap - 1);
      if (w >= 24) label(g, pen, pen.requests[holding.request], x - 1, w - gap + 2, y + (h - gap) / 2, hue);
    }
  }
  g.globalAlpha = 1;
  if (!gap) drawGrid(g, pen, columns, count, w, h);
  g.strokeStyle = pen.theme.fg;
  g.lineWidth = 2;
  for (const [slot, past] of shared) for (let at = slot; at < past; at += map.block) {
    const [x, y] = place(at / map.block);
    g.strokeRect(x + 1, y + 1, w - gap - 2, h - gap - 2);
  }
  g.lineWidth = 1;
  g.textAlign = "right";
  g.fillStyle = pen.theme.dim;
  const rows = Math.ceil(count / columns), every = Math.ceil(12 / h);
  for (let row = 0; row < rows; row += every) g.fillText(row ? String(row * columns) : "block 0", GUTTER - 6, 2 + row * h + (h - gap) / 2);
}

// Lines between blocks that are too small for outlines of their own.
function drawGrid(g, pen, columns, count, w, h) {
  const rows = Math.ceil(count / columns), wide = Math.min(columns, count) * w;
  g.fillStyle = pen.theme.bg;
  for (let column = 1; column < columns && w >= 4; column++) g.fillRect(GUTTER + column * w - 1, 2, 1, rows * h);
  for (let row = 1; row < rows; row++) g.fillRect(GUTTER, 1 + row * h, wide, 1);
  g.strokeStyle = pen.theme.idle;
  g.strokeRect(GUTTER - 0.5, 1.5, wide + 1, rows * h + 1);
}
