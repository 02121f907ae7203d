// One iteration's batch as the model gets it: a stream of tokens cut into spans (or a rectangle, where rows are padded),
// with the integers that attention needs, and what each request's tokens may look at.

// What the integers mean, shown where the pointer is.
const ROWS_ARE = "rows x columns of the rectangle: a row for each batch slot, as wide as the longest span; the rest is padding";
const CU_SEQLENS_ARE = "cumulative sequence lengths: where each request's rows begin in the stream, and where the last one's end";
const POSITIONS_ARE = "the place of each row's token in its own request, from 0 on";
const SLOT_MAPPING_IS = "the K/V slot that each row's key and value are written to";
const LAST_ROWS_ARE = "the rows whose logits are sampled: the last one of each request that is due a token";
const STREAM = 22, MASK = 76, MOST_ROWS = 10; // px; rows of a rectangle

// The batch of iteration i: {spans: [{request, start, size, draft, due, offset, run}], size, width}. `width` is that of
// a rectangle, padded on the right, or null: a batch with padding has no other form.
function batchOf(engine, i) {
  if (engine.flat?.i !== i) engine.flat = { i, ...buildBatch(engine, i) }; // drawing, words and pointer ask for the same
  return engine.flat;
}

function buildBatch(engine, i) {
  let offset = 0;
  const spans = (i < 0 ? [] : engine.batches.at(i)).map((request) => {
    const run = engine.runOf(request, i), span = { request, run, start: run.at(i), size: run.size, draft: run.draft, due: run.emitted(i).length > 0, offset };
    offset += run.size;
    return span;
  });
  const padding = i < 0 ? 0 : engine.padding[i], widest = spans.reduce((most, span) => Math.max(most, span.size), 0);
  const width = padding && widest && (offset + padding) % widest === 0 ? widest : null;
  if (width) spans.forEach((span, n) => (span.offset = n * width));
  return { spans, size: offset + padding, width, padding };
}

const flatBatch = {
  name: "batch of one iteration",

  height: (player, engine) => {
    const most = engine.padding.some(Boolean) ? Math.min(MOST_ROWS, engine.slots) * 15 + 8 : 0;
    return 18 + Math.max(STREAM + 14, most) + MASK + 34;
  },

  draw(g, pen) {
    const batch = batchOf(pen.engine, pen.now);
    if (!batch.spans.length) {
      g.fillStyle = pen.theme.dim;
      g.fillText(pen.now < 0 ? "before the first iteration" : "nothing ran", GUTTER, 20);
      return;
    }
    const under = batch.width ? drawRectangle(g, pen, batch) : drawStream(g, pen, batch);
    drawMasks(g, pen, batch, under + 24);
    g.globalAlpha = 1;
  },

  words(player, engine, i) {
    const { spans, size, width, padding } = batchOf(engine, i);
    if (!spans.length) return [];
    const holdings = new Map(engine.memoryMap.at(i).map((holding) => [holding.request, holding]));
    const positions = spans.map(({ start, size }) => [start, size]), slots = [];
    for (const { request, start, size } of spans) for (let p = start; p < start + size; p++) slots.push([holdings.get(request)?.slot(p) ?? null, 1]);
    const last = spans.filter((span) => span.due).map((span) => [span.offset + span.size - span.draft - 1, span.draft + 1]);
    const where = width ? ["rows", `${size / width} x ${width} = ${size}, ${padding} of them padding`, ROWS_ARE]
      : ["cu_seqlens", listed([...spans.map((span) => [span.offset, 1]), [size, 1]], false), CU_SEQLENS_ARE];
    return [
      where, ["positions", listed(positions), POSITIONS_ARE],
      ...(slots.some(([slot]) => slot === null) ? [] : [["slot_mapping", listed(slots), SLOT_MAPPING_IS]]),
      ["last rows", listed(last, false) || "none: no token is due", LAST_ROWS_ARE],
    ];
  },

  tip(player, engine, x, y, i, width) {
    const span = this.spanAt(engine, x, y, i, width);
    return span && runInWords(player, engine, span.run, i, `iteration ${i + 1}, rows ${span.offset} to ${span.offset + span.size - 1}`);
  },

  pick(engine, x, y, i, width) {
    return this.spanAt(engine, x, y, i, width)?.request ?? null;
  },

  spanAt(engine, x, y, i, width) {
    const batch = batchOf(engine, i), scale = (width - GUTTER - 2) / (batch.width ?? batch.size), column = (x - GUTTER) / scale;
    if (column < 0) return null;
    const row = batch.width ? Math.floor((y - 18) / rowHeightOf(batch)) : 0;
    if (y < 18 || (!batch.width && y > 18 + STREAM)) return null;
    return batch.spans.find((span, n) => (batch.width ? n === row && column < span.size : span.offset <= column && column < span.offset + span.size));
  },

  legend: () => [
    ["may look at: K/V of earlier iterations", (g, theme) => ((g.fillStyle = theme.hues[0].pale), g.fillRect(0, 0, 22, 14), frame(g, theme.hues[0].edge))],
    ["and at tokens of this one", (g, theme) => {
      g.fillStyle = theme.hues[0].mid;
      g.beginPath(), g.moveTo(0, 0), g.lineTo(0, 14), g.lineTo(22, 14), g.fill();
      frame(g, theme.hues[0].edge);
    }],
    ["row whose logits are needed", (g, theme) => pointer(g, 11, 3, theme.fg)],
  ],
};

// "0 to 11, 40, 17": [first, count] pairs, joined where they go on.
function listed(pairs, join = true, most = 60) {
  const joined = [];
  for (const [first, count] of pairs) {
    const before = joined.at(-1);
    if (join && before && before[0] + before[1] === first && before[2]) before[1] += count;
    else joined.push([first, count, true]);
  }
  const texts = joined.map(([first, count]) => (count === 1 ? `${first}` : count === 2 ? `${first}, ${first + 1}` : `${first} to ${first + count - 1}`));
  return texts.slice(0, most).join(", ") + (texts.length > most ? `, … (${texts.length - most} more)` : "");
}

const rowHeightOf = (batch) => Math.min(15, (MOST_ROWS * 15) / (batch.size / batch.width));

function drawSpan(g, pen, span, x, y, scale, height) {
  const hue = pen.hue(span.request), width = span.size * scale, phase = pen.phases[span.run.phase];
  g.globalAlpha = dimmed(pen, span.request) ? UNFOLLOWED : 1;
  g.fillStyle = phase === "decode" ? hue.pale : hatch(pen.theme, hue, phase);
  g.fillRect(x, y, Math.max(width, 1), height);
  g.strokeStyle = hue.edge;
  if (width >= 3) g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  if (height >= 11) underline(g, pen.theme, span.request, x, y + height, width);
  if (scale >= 5) {
    g.fillStyle = hue.edge;
    for (let n = 1; n < span.size; n++) g.fillRect(Math.round(x + n * scale), y + 1, 0.5, height - 2);
  }
  if (height >= 12) label(g, pen, pen.requests[span.request], x, width, y + height / 2, hue);
  if (!span.due) return;
  for (let n = 0; n <= span.draft; n++) pointer(g, x + (span.size - n - 0.5) * scale, y + height + 1, pen.theme.fg);
}

function drawStream(g, pen, batch) {
  const plot = pen.width - GUTTER - 2, scale = Math.min(plot / batch.size, 64), y = 18;
  let free = -Infinity;
  for (const span of batch.spans) drawSpan(g, pen, span, GUTTER + span.offset * scale, y, scale, STREAM);
  g.globalAlpha = 1;
  g.fillStyle = pen.theme.dim;
  for (const edge of [...batch.spans.map((span) => span.offset), batch.size]) {
    const x = GUTTER + edge * scale, text = String(edge), half = g.measureText(text).width / 2;
    g.fillRect(Math.round(Math.min(x, pen.width - 2)), y - 5, 1, 5);
    if (x - half < free + 5) continue;
    g.textAlign = x + half > pen.width ? "right" : "center";
    g.fillText(text, Math.min(x, pen.width - 1), y - 11);
    free = x + half;
  }
  g.textAlign = "right";
  g.fillText("row", GUTTER - 8, y - 11);
  g.fillText("stream", GUTTER - 8, y + STREAM / 2);
  return y + STREAM + 8;
}

function drawRectangle(g, pen, batch) {
  const plot = pen.width - GUTTER - 2, scale = Math.min(plot / batch.width, 64), h = rowHeightOf(batch), y = 18, rows = batch.size / batch.width;
  g.fillStyle = hatch(pen.theme, pen.theme.grey, "recompute");
  g.fillRect(GUTTER, y, batch.width * scale, rows * h - 1);
  g.strokeStyle = pen.theme.idle;
  g.strokeRect(GUTTER + 0.5, y + 0.5, batch.width * scale - 1, rows * h - 2);
  batch.spans.forEach((span, n) => {
    g.globalAlpha = 1;
    g.clearRect(GUTTER, y + n * h, span.size * scale, h - 1);
    drawSpan(g, pen, { ...span, due: false }, GUTTER, y + n * h, scale, h - 1);
    if (!span.due) return;
    g.fillStyle = pen.theme.fg;
    g.fillRect(GUTTER + span.size * scale - 4, y + n * h + 2, 3, h - 5); // its last token
  });
  g.globalAlpha = 1;
  g.fillStyle = pen.theme.dim;
  g.textAlign = "left";
  g.fillText(`${rows} x ${batch.width} rows`, GUTTER, 7);
  return y + rows * h;
}

// For each request a matrix: its tokens of this iteration (rows) by its positions (columns).
function drawMasks(g, pen, { spans }, top) {
  const plot = pen.width - GUTTER - 2, longest = Math.max(...spans.map((span) => span.start + span.size)), most = Math.max(...spans.map((span) => span.size));
  const scale = clamp(Math.min((plot / Math.min(spans.length, 6) - 16) / longest, MASK / most), 0.05, 8);
  let x = GUTTER, drawn = 0;
  g.textAlign = "left";
  for (const span of spans) {
    const keys = span.start + span.size, width = Math.max(keys * scale, 4), height = Math.max(span.size * scale, 12), hue = pen.hue(span.request);
    if (x + width > pen.width - (drawn + 1 < spans.length ? 70 : 2)) break;
    g.globalAlpha = dimmed(pen, span.request) ? UNFOLLOWED : 1;
    drawMask(g, span, x, top, width, height, hue);
    g.fillStyle = pen.theme.dim;
    const text = fit(g, pen, `${pen.requests[span.request]}: ${span.size} x ${keys}`, Math.max(width + 8, 66));
    g.fillText(text, x, top + height + 9);
    x += Math.max(width, g.measureText(text).width) + 14;
    drawn += 1;
  }
  g.globalAlpha = 1;
  g.fillStyle = pen.theme.dim;
  if (drawn < spans.length) g.fillText(`${spans.length - drawn} more`, x, top + 8);
  g.textAlign = "right";
  g.fillText("mask", GUTTER - 8, top + 6);
}

function drawMask(g, span, x, y, width, height, hue) {
  const keys = span.start + span.size, w = width / keys, h = height / span.size, past = x + span.start * w;
  g.fillStyle = hue.pale;
  g.fillRect(x, y, span.start * w, height);
  g.fillStyle = hue.mid;
  g.beginPath();
  g.moveTo(past, y);
  for (let row = 0; row < span.size; row++) {
    g.lineTo(past + (row + 1) * w, y + row * h);
    g.lineTo(past + (row + 1) * w, y + (row + 1) * h);
  }
  g.lineTo(past, y + height);
  g.fill();
  g.strokeStyle = hue.edge;
  g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
}

function pointer(g, x, y, colour) {
  g.fillStyle = colour;
  g.beginPath();
  g.moveTo(x, y);
  g.lineTo(x + 4, y + 6);
  g.lineTo(x - 4, y + 6);
  g.fill();
}
