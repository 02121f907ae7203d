// Why is nobody in here? What a batch slot that is idle answers, as far as the trace tells.

function whyIdle(player, engine, i) {
  const [head] = engine.queue(i), lost = engine.events.find(([at, kind]) => at === i && kind === "preempt");
  if (head === undefined) return "nobody waits: the queue is empty";
  const name = player.label(head), room = roomFor(engine, head, i), stayed = stayers(engine, i);
  if (stayed.length && refills(engine)) {
    const longest = stayed.map((request) => engine.lives.get(request)).reduce((a, b) => ((b.end ?? Infinity) > (a.end ?? Infinity) ? b : a));
    const until = longest.end === null ? "" : ` (iteration ${longest.end + 1})`;
    return `static: the batch is not refilled until its longest request, ${player.label(longest.request)}, has ended${until}`;
  }
  if (lost) return `${player.label(lost[2])} was preempted in this iteration, and then nobody joins`;
  if (engine.budget[i] !== null && tokensOf(engine, i) >= engine.budget[i]) return `the token budget of ${engine.budget[i]} is used up`;
  if (!room) return `${name} is next in the queue, and this trace does not tell why it waits`;
  if (room.need > room.most) return `${name} needs ${room.said}`;
  return `${name} is next and would fit (it needs ${room.said}), but the scheduler let nobody in`;
}

// What the request needs to be admitted and what there is of it, in slots or blocks; null where the trace has no memory.
function roomFor(engine, request, i) {
  const map = engine.memoryMap, [prompt, most] = engine.records[request];
  if (map.empty) return null;
  const free = map.size - map.figures(i).held;
  if (map.block > 1) {
    const tokens = prompt + after(engine.lives.get(request).came, i), need = Math.ceil(tokens / map.block), left = free / map.block;
    return { need, most: left, said: `${plural(need, "block")} for its ${plural(tokens, "token")}, ${left} ${left === 1 ? "is" : "are"} free` };
  }
  const need = prompt + most, holes = map.holes(i).map(([slot, past]) => past - slot);
  if (!map.contiguous) return { need, most: free, said: `${plural(need, "K/V slot")}, ${free} ${free === 1 ? "is" : "are"} free` };
  const largest = Math.max(0, ...holes), pieces = free >= need && largest < need ? ` (${free} are free, but not in one piece)` : "";
  return { need, most: largest, said: `${plural(need, "K/V slot")}, the largest hole has ${largest}${pieces}` };
}

const tokensOf = (engine, i) => engine.batches.at(i).reduce((sum, request) => sum + engine.runOf(request, i).size, 0);

// Who runs in iteration i and ran in the one before.
function stayers(engine, i) {
  const before = new Set(i ? engine.batches.at(i - 1) : []);
  return engine.batches.at(i).filter((request) => before.has(request));
}

// Whether this is static batching: nobody ever joined those who run, though somebody could have.
function refills(engine) {
  engine.isStatic ??= (() => {
    const all = Array.from({ length: engine.count }, (_, i) => i), stayed = all.map((i) => stayers(engine, i).length);
    if (all.some((i) => stayed[i] && engine.running[i] > stayed[i])) return false;
    const could = (i) => {
      const [head] = engine.queue(i), room = head !== undefined && engine.running[i] < engine.slots && roomFor(engine, head, i);
      return room && room.need <= room.most;
    };
    return engine.name === "static" || all.some((i) => stayed[i] && could(i));
  })();
  return engine.isStatic;
}
