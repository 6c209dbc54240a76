/** A layered layout of a graph: nodes in rows from top to bottom, a subgraph as one box. */

const NODE = { width: 104, height: 34 };
const DOT = { width: 14, height: 14 };
const LINE = { width: 6, height: 0 }; // an edge that passes a row
const SPACE = 18; // between neighbours in a row
const GAP = 22; // between rows that are joined by vertical edges
const MAX_EXTRA_GAP = 36; // for edges that run sideways
const BOX = { side: 16, top: 26, bottom: 12 }; // padding
const PORT = 13; // between the ends of edges at a node
const MARGIN = 6;
const WEIGHT = { conditional: 1, fixed: 4, passing: 8 }; // how much an edge wants to be vertical
const SWEEPS = 24; // even: the last one goes up

/**
 * `x` and `y` are the centre.
 * @typedef {{id: string, x: number, y: number, width: number, height: number}} Shape
 * @typedef {[x: number, y: number][]} Points
 * @typedef {{source: string, target: string, conditional?: boolean, data?: string}} Edge
 * @typedef {{edge: Edge, points: Points}} Route
 * @typedef {{width: number, height: number, nodes: Shape[], boxes: Shape[], routes: Route[]}} Layout
 */

export const isDot = (id) => /(^|:)__(start|end)__$/.test(id);

/**
 * Compute where everything goes.
 * @param {string[]} ids a subgraph's nodes are named `subgraph:node`
 * @param {Edge[]} edges
 * @returns {Layout}
 */
export function layout(ids, edges) {
  const items = makeItems(ids, edges);
  const links = makeLinks(items, edges);
  assignRows(items, links);
  const rows = makeRows(items, links);
  sortRows(rows);
  placeAcross(rows);
  placeDown(rows);
  placePorts(items, links);
  return collect(items, links);
}

const head = (id) => id.split(":", 1)[0];
const tail = (id) => id.slice(head(id).length + 1);

/** One item for each node and for each subgraph, which is laid out first. */
function makeItems(ids, edges) {
  const items = new Map();
  for (const id of ids) {
    const name = head(id);
    const size = isDot(name) ? DOT : NODE;
    if (!items.has(name)) items.set(name, { name, above: [], below: [], ...size });
    if (name !== id) (items.get(name).members ??= []).push(tail(id));
  }
  for (const item of items.values()) {
    if (!item.members) continue;
    const own = edges.filter(({ source, target }) => isWithin(item, source) && isWithin(item, target));
    const inner = own.map((edge) => {
      const { source, target } = edge;
      return { original: edge, ...edge, source: tail(source), target: tail(target) };
    });
    item.inner = layout(item.members, inner);
    item.width = item.inner.width + 2 * BOX.side;
    item.height = item.inner.height + BOX.top + BOX.bottom;
  }
  return items;
}

const isWithin = (item, id) => head(id) === item.name && id !== item.name;

/** A link for each edge between items, from the upper one to the lower one. */
function makeLinks(items, edges) {
  const ends = (edge) => ({ upper: items.get(head(edge.source)), lower: items.get(head(edge.target)) });
  const links = edges
    .map((edge) => ({ edge, chain: [], ...ends(edge) }))
    .filter(({ upper, lower }) => upper !== lower || !upper.inner);
  const order = sortDown([...items.values()], links);
  for (const link of links) {
    const { upper, lower } = link;
    link.isBack = order.indexOf(upper) > order.indexOf(lower);
    if (link.isBack) [link.upper, link.lower] = [lower, upper];
  }
  return links;
}

/** Sort the items along the edges, then move single items while that leaves fewer edges going back. */
function sortDown(items, links) {
  let order = [];
  const left = new Set(items);
  while (left.size) {
    const before = (item) => links.filter(({ lower }) => lower === item).map(({ upper }) => upper);
    const reached = [...left].filter((item) => before(item).some((each) => !left.has(each)));
    // An item waits for its predecessors: above all for those that are reached, less for the others.
    const cost = (each) => left.has(each) + reached.includes(each) * links.length;
    const waits = (item) => before(item).reduce((sum, each) => sum + cost(each), 0);
    const next = (reached.length ? reached : [...left]).reduce((a, b) => (waits(b) < waits(a) ? b : a));
    order.push(next);
    left.delete(next);
  }
  const countBack = (order) =>
    links.filter(({ upper, lower }) => order.indexOf(upper) > order.indexOf(lower)).length;
  for (const item of items) {
    for (const at of items.keys()) {
      const moved = order.filter((each) => each !== item).toSpliced(at, 0, item);
      if (countBack(moved) < countBack(order)) order = moved;
    }
  }
  return order;
}

/** Put each item below its predecessors, and an item without any right above its successors. */
function assignRows(items, links) {
  const down = links.filter(({ upper, lower }) => upper !== lower);
  const rowsOf = (from, to, item) => down.filter((link) => link[from] === item).map((link) => rowOf(link[to]));
  const rowOf = (item) => (item.row ??= Math.max(-1, ...rowsOf("lower", "upper", item)) + 1);
  items.forEach(rowOf);
  for (const item of items.values()) {
    const after = rowsOf("upper", "lower", item);
    if (item.row === 0 && after.length) item.row = Math.min(...after) - 1;
  }
}

/** Fill the rows, with a place for each edge that passes one. */
function makeRows(items, links) {
  const rows = [];
  const put = (item) => {
    const row = (rows[item.row] ??= []);
    item.at = row.length;
    row.push(item);
  };
  items.forEach(put);
  for (const { upper, lower, chain, edge } of links) {
    const weight = edge.conditional ? WEIGHT.conditional : WEIGHT.fixed;
    for (let row = upper.row + 1; row < lower.row; row++) chain.push({ row, above: [], below: [], ...LINE });
    chain.forEach(put);
    const stops = upper === lower ? [] : [upper, ...chain, lower];
    for (let at = 1; at < stops.length; at++) connect(stops[at - 1], stops[at], weight);
  }
  return rows;
}

function connect(upper, lower, weight) {
  if (!upper.name && !lower.name) weight = WEIGHT.passing;
  upper.below.push({ item: lower, weight });
  lower.above.push({ item: upper, weight });
}

/** Sort each row by the mean place of its neighbours above, then below, and so on. */
function sortRows(rows) {
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const side = sweep % 2 ? "below" : "above";
    for (const row of sweep % 2 ? rows.toReversed() : rows) {
      for (const item of row) item.rank = mean(item[side], (near) => near.at) ?? item.at;
      row.sort((a, b) => a.rank - b.rank);
      row.forEach((item, at) => (item.at = at));
    }
  }
}

function mean(links, measure) {
  const total = links.reduce((sum, { weight }) => sum + weight, 0);
  return total ? links.reduce((sum, { item, weight }) => sum + weight * measure(item), 0) / total : null;
}

/** Move each item towards its neighbours, as far as those in its row let it. */
function placeAcross(rows) {
  const room = (a, b) => (a.width + b.width) / 2 + SPACE;
  for (const row of rows) {
    row.forEach((item, at) => (item.x = at ? row[at - 1].x + room(row[at - 1], item) : 0));
  }
  for (let sweep = 0; sweep < 8 * SWEEPS; sweep++) {
    for (const row of sweep % 2 ? rows.toReversed() : rows) {
      const wanted = row.map((item) => mean([...item.above, ...item.below], ({ x }) => x) ?? item.x);
      spread(wanted, (at) => room(row[at - 1], row[at])).forEach((x, at) => (row[at].x = x));
    }
  }
  for (const [item, ...others] of rows.toReversed()) {
    if (!others.length && item.below.length === 1) item.x = item.below[0].item.x; // a chain stands straight
  }
}

/** Keep places in order and apart: `room(at)` is what lies between `at` and the one before. */
function spread(wanted, room) {
  const right = [...wanted];
  const left = [...wanted];
  for (let at = 1; at < wanted.length; at++) {
    right[at] = Math.max(right[at], right[at - 1] + room(at));
    const end = wanted.length - at;
    left[end - 1] = Math.min(left[end - 1], left[end] - room(end));
  }
  return wanted.map((_, at) => (right[at] + left[at]) / 2);
}

/** Set the height of the rows. */
function placeDown(rows) {
  let y = 0;
  for (const row of rows) {
    const height = Math.max(...row.map((item) => item.height));
    for (const item of row) Object.assign(item, { y: y + height / 2, top: y, bottom: y + height });
    const sideways = row.flatMap((item) => item.below.map((link) => Math.abs(link.item.x - item.x)));
    y += height + GAP + Math.min(MAX_EXTRA_GAP, Math.max(0, ...sideways) / 5);
  }
}

/** Choose where links leave and enter the items: towards their other ends, but apart. */
function placePorts(items, links) {
  for (const item of items.values()) {
    for (const [end, port] of [["upper", "exit"], ["lower", "entry"]]) {
      const own = links.filter((link) => link[end] === item && link.upper !== link.lower);
      for (const link of own) link[port] = fixedPort(item, link) ?? towards(item, link, end);
      if (fixedPort(item, own[0]) !== null) continue;
      own.sort((a, b) => a[port] - b[port]);
      spread(own.map((link) => link[port]), () => PORT).forEach((x, at) => (own[at][port] = x));
    }
  }
}

/** A box is entered above the inner node, a dot at its centre. */
function fixedPort(item, link) {
  if (!link || (!item.inner && !isDot(item.name))) return null;
  return item.x + (innerEnd(item, link)?.x ?? 0);
}

/** The node in a box at which a link ends, from the centre of the box. */
function innerEnd(item, { edge }) {
  if (!item.inner) return null;
  const id = head(edge.source) === item.name ? edge.source : edge.target;
  const node = item.inner.nodes.find((each) => each.id === tail(id));
  const [x, y] = node ? [node.x - item.inner.width / 2, BOX.top + node.y - item.height / 2] : [];
  return node && { x, y, height: node.height };
}

function towards(item, link, end) {
  const near = end === "upper" ? (link.chain[0] ?? link.lower) : (link.chain.at(-1) ?? link.upper);
  const other = near.name ? (fixedPort(near, link) ?? (near.x + item.x) / 2) : near.x;
  const most = item.width / 2 - PORT;
  return Math.min(Math.max(other, item.x - most), item.x + most);
}

/** @returns {Points} of a link, from the source to the target */
function run(link) {
  const { upper, lower, chain, isBack } = link;
  const points = [
    ...endPoints(link, upper, link.exit, 1),
    [link.exit, upper.bottom],
    ...chain.flatMap(({ x, top, bottom }) => [[x, top], [x, bottom]]),
    [link.entry, lower.top],
    ...endPoints(link, lower, link.entry, -1).reverse(),
  ];
  const distinct = points.filter(([x, y], at) => !at || x !== points[at - 1][0] || y !== points[at - 1][1]);
  return isBack ? distinct.reverse() : distinct;
}

/** Where a link ends at the lower (1) or upper (-1) side of an item; a back edge ends at a box's border. */
function endPoints(link, item, x, side) {
  const border = [x, item.y + (side * item.height) / 2];
  const inner = innerEnd(item, link);
  return inner && !link.isBack ? [[x, item.y + inner.y + (side * inner.height) / 2], border] : [border];
}

/** @returns {Layout} with the inner layouts in their boxes, moved to start at 0 */
function collect(items, links) {
  const found = { nodes: [], boxes: [], routes: [] };
  for (const item of items.values()) {
    const { name: id, x, y, width, height, inner } = item;
    (inner ? found.boxes : found.nodes).push({ id, x, y, width, height });
    if (!inner) continue;
    const [dx, dy] = [x - inner.width / 2, y - height / 2 + BOX.top];
    const moved = (shape) => ({ ...shape, id: `${id}:${shape.id}`, x: shape.x + dx, y: shape.y + dy });
    found.nodes.push(...inner.nodes.map(moved));
    found.boxes.push(...inner.boxes.map(moved));
    found.routes.push(...inner.routes.map(({ edge, points }) => ({ edge, points: shifted(points, dx, dy) })));
  }
  for (const link of links) {
    found.routes.push({ edge: link.edge.original ?? link.edge, points: loop(link) ?? run(link) });
  }
  const shapes = [...found.nodes, ...found.boxes];
  const across = [
    ...shapes.flatMap(({ x, width }) => [x - width / 2, x + width / 2]),
    ...found.routes.flatMap(({ points }) => points.map(([x]) => x)),
  ];
  const left = Math.min(...across) - MARGIN;
  const top = -MARGIN;
  for (const shape of shapes) Object.assign(shape, { x: shape.x - left, y: shape.y - top });
  for (const route of found.routes) route.points = shifted(route.points, -left, -top);
  const height = Math.max(...shapes.map(({ y, height }) => y + height / 2)) + MARGIN;
  return { ...found, width: Math.max(...across) - left + MARGIN, height };
}

/** An edge from a node to itself bends out of its right side. */
function loop({ upper, lower }) {
  if (upper !== lower) return null;
  const [x, y, step] = [upper.x + upper.width / 2, upper.y, upper.height / 4];
  return [[x, y - step], [x + 3 * step, y], [x, y + step]];
}

const shifted = (points, dx, dy) => points.map(([x, y]) => [x + dx, y + dy]);

/** @param {Points} points @returns {string} an SVG path: curves from row to row, straight lines past them */
export function path([[x, y], ...rest]) {
  let d = `M${x} ${y}`;
  let from = [x, y];
  for (const to of rest) {
    const middle = (from[1] + to[1]) / 2;
    const isStraight = Math.abs(from[0] - to[0]) < 0.5;
    d += isStraight ? `V${to[1]}` : `C${from[0]} ${middle} ${to[0]} ${middle} ${to[0]} ${to[1]}`;
    from = to;
  }
  return d;
}
