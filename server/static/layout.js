/** Where the nodes and edges of a graph go: dagre's layered layout, with a subgraph as a box. */

import { Graph, layout as arrange } from "./dagre.js";

const NODE = { width: 104, height: 34 };
const DOT = { width: 14, height: 14 };
const SPACING = { nodesep: 18, edgesep: 14, ranksep: 30, marginx: 8, marginy: 8, acyclicer: "greedy" };

/**
 * `x` and `y` are the centre.
 * @typedef {{id: string, x: number, y: number, width: number, height: number}} Shape
 * @typedef {{x: number, y: number}} Point
 * @typedef {{source: string, target: string, conditional?: boolean, data?: string}} Edge
 * @typedef {{edge: Edge, points: Point[], label: Point}} Route
 * @typedef {{width: number, height: number, nodes: Shape[], boxes: Shape[], routes: Route[]}} Layout
 */

export const isDot = (id) => /(^|:)__(start|end)__$/.test(id);

/** The subgraph of a node, empty for none. @param {string} id */
export const parent = (id) => id.split(":").slice(0, -1).join(":");

/**
 * Compute where everything goes.
 * @param {string[]} ids a subgraph's nodes are named `subgraph:node`
 * @param {Edge[]} edges
 * @param {(edge: Edge) => string | undefined} labelOf
 * @returns {Layout}
 */
export function layout(ids, edges, labelOf) {
  const graph = new Graph({ compound: true });
  graph.setGraph({ ...SPACING }).setDefaultNodeLabel(() => ({}));
  for (const id of ids) {
    graph.setNode(id, { ...(isDot(id) ? DOT : NODE) });
    for (let child = id; parent(child); child = parent(child)) graph.setParent(child, parent(child));
  }
  for (const edge of edges) {
    const size = labelOf(edge) ? { width: 8 * labelOf(edge).length, height: 16, labelpos: "c" } : {};
    graph.setEdge(edge.source, edge.target, { edge, weight: edge.conditional ? 1 : 4, ...size });
  }
  arrange(graph);
  const shapes = graph.nodes().map((id) => ({ id, ...graph.node(id) }));
  const routes = graph.edges().map((each) => {
    const { edge, points, x, y } = graph.edge(each);
    return { edge, points, label: { x, y } };
  });
  const isBox = ({ id }) => graph.children(id).length > 0;
  const { width, height } = graph.graph();
  return { width, height, nodes: shapes.filter((each) => !isBox(each)), boxes: shapes.filter(isBox), routes };
}

/** @param {Point[]} points @returns {string} an SVG path, smooth at the points between its ends */
export function path([start, ...rest]) {
  const end = rest.pop();
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  const curves = rest.map((bend, at) => {
    const to = at + 1 < rest.length ? middle(bend, rest[at + 1]) : end;
    return `Q${bend.x} ${bend.y} ${to.x} ${to.y}`;
  });
  return `M${start.x} ${start.y}${curves.join("")}`;
}
