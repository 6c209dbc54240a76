/** The graph as SVG: the server says which nodes and edges there are, layout.js where they go. */

import { duration, newId, svg } from "./dom.js";
import { isDot, layout, parent, path } from "./layout.js";

/** The meaning of each conditional edge, by its source and target. */
const LABELS = {
  "start condense": "follow-up",
  "gate route": "Yes",
  "gate generate": "No",
  "route generate": "A none",
  "route retrieve": "B single",
  "route multihop": "C multi",
  "generate escalate": "in doubt",
};

/** A drawing of the graph that highlights the path of one run. */
export class Drawing {
  /** @param {{nodes: {id: string}[], edges: {source: string, target: string, conditional?: boolean}[]}} graph */
  constructor(graph) {
    /** @type {Map<string, any>} */
    this.nodes = new Map();
    /** @type {Map<string, any>} by source and target */
    this.edges = new Map();
    /** @type {Map<string, any>} */
    this.boxes = new Map();
    this.arrow = newId();
    const { width, height, nodes, boxes, routes } = layout(graph.nodes.map(({ id }) => id), graph.edges, labelOf);
    this.element = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "graph" });
    this.element.append(arrowheads(this.arrow));
    for (const box of boxes) this.drawBox(box);
    this.lines = this.element.appendChild(svg("g"));
    for (const route of routes) this.drawEdge(route);
    for (const node of nodes) this.drawNode(node);
    this.reset();
  }

  /** Clear the path. */
  reset() {
    this.last = "__start__";
    /** @type {string[]} the nodes of the path, in order */
    this.path = [];
    for (const each of [...this.nodes.values(), ...this.boxes.values()]) {
      each.setAttribute("class", each.dataset.kind);
      const count = each.querySelector(".count");
      if (count) count.textContent = "";
    }
    for (const edge of this.edges.values()) {
      this.paint(edge, false);
      const label = edge.querySelector("text");
      if (label) label.textContent = edge.dataset.label;
    }
    this.describe();
  }

  /** @param {import("./run.js").RunEvent} event */
  take(event) {
    if (event.kind === "start") this.enter(event.node);
    if (event.kind === "end") this.leave(event.node, "done", event.result.usage);
    if (event.kind === "custom" && event.data.event === "gate") this.labelGate(event.data);
    if (event.kind === "fail") this.leave(event.node, "failed");
  }

  /** Mark no node as busy any more, and the end of a run that answered. */
  stop(answered = false) {
    for (const each of this.element.querySelectorAll(".busy")) each.classList.remove("busy");
    if (answered) this.moveTo("__end__");
    this.describe();
  }

  enter(node) {
    const box = this.boxes.get(node);
    if (box) box.classList.add("visited");
    else this.path.push(node);
    if (!box) this.moveTo(node);
    else if (this.nodes.has(`${node}:__start__`)) this.moveTo(`${node}:__start__`);
    this.nodes.get("__start__")?.classList.add("done");
    this.nodes.get(node)?.classList.add("busy");
    this.describe();
  }

  leave(node, how, usage) {
    const shape = this.nodes.get(node);
    if (!shape) return;
    shape.classList.remove("busy");
    shape.classList.add(how);
    const visits = this.path.filter((each) => each === node).length;
    const ms = (usage?.value ?? usage)?.ms[name(node)];
    const words = [visits > 1 && `×${visits}`, ms !== undefined && duration(ms)];
    const count = words.filter(Boolean).join("  ");
    shape.querySelector(".count").textContent = count;
    shape.classList.toggle("counted", count !== "");
  }

  /** Write the gate's reply on the edge that the run takes. */
  labelGate({ answer, retrieve }) {
    const edge = this.edges.get(`gate ${retrieve || answer === "skipped" ? "route" : "generate"}`);
    const text = { skipped: "not asked", invalid: "unclear" }[answer];
    if (edge && text) edge.querySelector("text").textContent = text;
  }

  /** Highlight the edge to a node, through the ends of the subgraphs that the run leaves. */
  moveTo(node) {
    for (let box = parent(this.last); box && !node.startsWith(`${box}:`); box = parent(box)) {
      if (this.nodes.has(`${box}:__end__`)) this.step(`${box}:__end__`);
    }
    this.step(node);
  }

  step(node) {
    this.highlight(`${this.last} ${node}`);
    if (isDot(node)) this.nodes.get(node)?.classList.add("done");
    this.last = node;
  }

  highlight(name) {
    const edge = this.edges.get(name);
    if (!edge) return;
    this.paint(edge, true);
    edge.parentNode.append(edge); // drawn over the others
  }

  paint(edge, lit) {
    edge.setAttribute("class", lit ? "edge lit" : edge.dataset.kind);
    edge.querySelector("path").setAttribute("marker-end", `url(#${this.arrow}${lit ? "-lit" : ""})`);
  }

  describe() {
    const path = this.path.map((node) => node.replaceAll(":", " ")).join(", ");
    this.element.setAttribute("aria-label", path ? `Path so far: ${path}` : "The graph, no path yet");
  }

  drawBox({ id, x, y, width, height }) {
    const [left, top] = [x - width / 2, y - height / 2];
    const box = svg("rect", { x: left, y: top, width, height, rx: 12 });
    const shape = svg("g", {}, box, svg("text", { x: left + 12, y: top + 20 }, name(id)));
    shape.dataset.kind = "box";
    shape.dataset.box = id;
    this.boxes.set(id, shape);
    this.element.append(shape);
  }

  drawEdge({ edge, points, label: { x, y } }) {
    const shape = svg("g", {}, svg("path", { d: path(points) }));
    shape.dataset.kind = edge.conditional ? "edge conditional" : "edge";
    shape.dataset.edge = `${edge.source} ${edge.target}`;
    const label = labelOf(edge);
    if (label) {
      shape.dataset.label = label;
      shape.append(svg("text", { x, y: y + 4 }, label));
    }
    this.edges.set(shape.dataset.edge, shape);
    this.lines.append(shape);
  }

  drawNode({ id, x, y, width, height }) {
    const shape = isDot(id)
      ? svg("g", {}, svg("circle", { cx: x, cy: y, r: width / 2 }))
      : svg(
          "g",
          {},
          svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 9 }),
          svg("text", { x, y: y + 5, class: "name" }, name(id)),
          svg("text", { x, y: y + 13, class: "count" }),
        );
    shape.dataset.kind = isDot(id) ? "dot" : "node";
    shape.dataset.node = id;
    this.nodes.set(id, shape);
    this.element.append(shape);
  }
}

const labelOf = ({ source, target, data }) => data ?? LABELS[`${source} ${target.replace(/:__start__$/, "")}`];

/** @param {string} id */
const name = (id) => id.split(":").pop();

function arrowheads(id) {
  const box = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerUnits: "userSpaceOnUse", orient: "auto" };
  const head = (name, kind, size) =>
    svg(
      "marker",
      { id: name, class: kind, markerWidth: size, markerHeight: size, ...box },
      svg("path", { d: "M0 0.500L8 4L0 7.500Z" }),
    );
  return svg("defs", {}, head(id, "arrow", 7), head(`${id}-lit`, "arrow lit", 10));
}
