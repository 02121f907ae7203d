// The arena in each iteration, from the holdings that visualizers/memory_map.py sent (its docstring describes them).

class Holding {
  constructor([request, first, end, parts, told], computed) {
    let place = 0;
    this.parts = parts.map(([since, slot, past]) => ({ since, slot, past, place: (place += past - slot) - (past - slot) }));
    Object.assign(this, { request, first, end, used: new Int32Array(end - first) });
    const known = new Map(told);
    for (let i = first, now = 0; i < end; i++) this.used[i - first] = now = known.get(i) ?? computed?.get(i) ?? now;
    this.grows = this.used.every((used, n) => !n || used >= this.used[n - 1]);
  }

  // Filled slots of a part in iteration i.
  filled(part, i) {
    return Math.min(Math.max(this.used[i - this.first] - part.place, 0), part.past - part.slot);
  }

  // Whether a part is full from iteration i on.
  staysFull(part, i) {
    return this.grows && this.filled(part, i) === part.past - part.slot;
  }

  // The slot of a position, once it is held.
  slot(position) {
    const part = this.parts.findLast((part) => part.place <= position);
    return part && position - part.place < part.past - part.slot ? part.slot + position - part.place : null;
  }
}

class MemoryMap {
  constructor(engine) {
    const computed = computedOf(engine.runs);
    Object.assign(this, { size: engine.num_slots, block: engine.block_size, contiguous: engine.contiguous, count: engine.count });
    this.holdings = engine.memory.map((sent) => new Holding(sent, computed.get(sent[0])));
    this.starts = this.holdings.map((holding) => holding.first);
    this.reach = Math.max(0, ...this.holdings.flatMap((holding) => holding.parts.map((part) => part.past)));
    this.kept = new Map();
    this.shares = !this.contiguous && this.overlaps();
  }

  // Whether any block ever had two holders at once.
  overlaps() {
    const until = new Map();
    for (const holding of this.holdings) for (const part of holding.parts) {
      for (let slot = part.slot; slot < part.past; slot += this.block) {
        if (until.get(slot) > part.since) return true;
        until.set(slot, Math.max(holding.end, until.get(slot) ?? 0));
      }
    }
    return false;
  }

  get empty() {
    return !this.holdings.length;
  }

  // Addresses worth a picture: an arena of which the run needs a small part is not drawn to its end.
  get shown() {
    return this.reach * 2 > this.size ? this.size : Math.min(this.size, Math.ceil(this.reach / this.block) * this.block);
  }

  at(i) {
    return this.holdings.slice(0, after(this.starts, i)).filter((holding) => i < holding.end);
  }

  // [slot, past, how many requests hold it], by address, of iteration i; kept, because several views ask.
  ranges(i) {
    if (!this.kept.has(i)) {
      if (this.kept.size > 500) this.kept.clear();
      this.kept.set(i, depths(this.at(i).flatMap((holding) => holding.parts.filter((part) => part.since <= i))));
    }
    return this.kept.get(i);
  }

  holes(i) {
    const holes = [];
    let end = 0;
    for (const [slot, past] of this.ranges(i)) {
      if (slot > end) holes.push([end, slot]);
      end = past;
    }
    return end < this.size ? [...holes, [end, this.size]] : holes;
  }

  // Free ranges that are of no use to the largest request that a hole could take: all but the largest hole.
  lost(i) {
    const holes = this.contiguous ? this.holes(i) : [];
    const largest = holes.reduce((a, b) => (b[1] - b[0] > a[1] - a[0] ? b : a), [0, 0]);
    return holes.filter((hole) => hole !== largest);
  }

  // In slots; the same numbers as memory_map.MemoryMap.figures.
  figures(i) {
    if (i < 0) return { held: 0, filled: 0, lost: 0 };
    const length = (ranges) => ranges.reduce((sum, [slot, past]) => sum + past - slot, 0), ranges = this.ranges(i);
    const again = ranges.reduce((sum, [slot, past, depth]) => sum + (depth - 1) * (past - slot), 0);
    const filled = this.at(i).reduce((sum, holding) => sum + holding.used[i - holding.first], 0);
    return { held: length(ranges), filled: filled - again, lost: length(this.lost(i)) };
  }
}

// {request: {iteration: tokens computed when it is done}}.
function computedOf(runs) {
  const found = new Map();
  for (const run of runs) {
    if (!found.has(run.request)) found.set(run.request, new Map());
    for (let i = run.first; i < run.end; i++) found.get(run.request).set(i, run.at(i) + run.size - run.rejected(i));
  }
  return found;
}

function depths(parts) {
  const edges = new Map(), add = (slot, change) => edges.set(slot, (edges.get(slot) ?? 0) + change), found = [];
  for (const { slot, past } of parts) add(slot, 1), add(past, -1);
  const slots = [...edges.keys()].sort((a, b) => a - b);
  let depth = 0;
  slots.forEach((slot, n) => {
    depth += edges.get(slot);
    if (depth) found.push([slot, slots[n + 1], depth]);
  });
  return found;
}
