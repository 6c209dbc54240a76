/** The graph as SVG: nodes and edges are the server's, where they stand is ours. */

import { duration, newId, svg } from "./dom.js";

const WIDTH = 104;
const HEIGHT = 36;

/** Centres. A node without a place goes to the foot, so that none is left out. */
const PLACES = {
  __start__: [250, 18],
  condense: [250, 62],
  gate: [250, 122],
  route: [250, 182],
  retrieve: [72, 368],
  "multihop:__start__": [300, 250],
  "multihop:decompose": [378, 288],
  "multihop:retrieve": [300, 350],
  "multihop:reason": [222, 424],
  "multihop:sub_answer": [378, 424],
  "multihop:__end__": [300, 466],
  generate: [250, 532],
  escalate: [78, 532],
  __end__: [250, 592],
};

const GROUPS = { multihop: [152, 238, 300, 240] };

/** How edges run, and what stands beside them; an edge without a way is a straight line. */
const WAYS = {
  "__start__ condense": ["M250 25V43"],
  "condense gate": ["M250 80V103"],
  "gate route": ["M250 140V163", "Yes", 260, 156],
  "gate generate": ["M302 122H456Q470 122 470 136V522Q470 536 456 536H303", "No", 312, 115],
  "route generate": ["M302 182H446Q460 182 460 196V514Q460 528 446 528H303", "A none", 312, 175],
  "route retrieve": ["M198 182H86Q72 182 72 196V349", "B single", 190, 175, "end"],
  "route multihop:__start__": ["M250 200C250 226 300 214 300 243", "C multi", 296, 217],
  "retrieve generate": ["M92 386V482Q92 496 106 496H210Q222 496 222 513"],
  "multihop:__end__ generate": ["M300 473C300 500 272 486 272 513"],
  "generate escalate": ["M198 532H131", "in doubt", 164, 525, "middle"],
  "generate __end__": ["M250 550V584"],
  "escalate retrieve": ["M52 514V387"],
  "escalate multihop:__start__": ["M26 532H22Q10 532 10 520V230Q10 218 22 218H278Q296 218 298 243"],
  "multihop:__start__ multihop:retrieve": ["M300 257V331"],
  "multihop:__start__ multihop:decompose": ["M306 251C350 252 378 252 378 269"],
  "multihop:__start__ multihop:reason": ["M294 251C222 256 196 320 196 405"],
  "multihop:decompose multihop:retrieve": ["M378 306C378 334 374 350 353 350"],
  "multihop:decompose multihop:__end__": ["M430 288Q440 288 440 298V454Q440 466 428 466H308"],
  "multihop:retrieve multihop:reason": ["M282 368C281 390 245 384 243 405"],
  "multihop:reason multihop:retrieve": ["M216 406C217 378 258 392 262 369"],
  "multihop:retrieve multihop:sub_answer": ["M318 368C319 390 355 384 357 405"],
  "multihop:sub_answer multihop:retrieve": ["M384 406C383 378 342 392 338 369"],
  "multihop:retrieve multihop:__end__": ["M300 368V458"],
  "multihop:reason multihop:__end__": ["M222 442Q222 466 246 466H292"],
  "multihop:sub_answer multihop:__end__": ["M378 442Q378 466 354 466H308"],
};

/** A drawing of the graph on which one run's path lights up. */
export class Drawing {
  /** @param {{nodes: {id: string}[], edges: {source: string, target: string, conditional?: boolean}[]}} graph */
  constructor(graph) {
    /** @type {Map<string, any>} */
    this.nodes = new Map();
    /** @type {Map<string, any>} by source and target */
    this.edges = new Map();
    /** @type {Map<string, any>} */
    this.groups = new Map();
    this.arrow = newId();
    this.places = placed(graph.nodes.map((node) => node.id));
    const height = Math.max(...[...this.places.values()].map(([, y]) => y)) + 12;
    this.element = svg("svg", { viewBox: `0 0 480 ${height}`, role: "img", class: "graph" });
    this.element.append(arrowheads(this.arrow));
    for (const name of Object.keys(GROUPS)) this.drawGroup(name);
    this.lines = this.element.appendChild(svg("g"));
    for (const edge of graph.edges) this.drawEdge(edge);
    for (const node of graph.nodes) this.drawNode(node.id);
    this.reset();
  }

  /** Forget the path. */
  reset() {
    this.last = "__start__";
    /** @type {string[]} the nodes of the path, in order */
    this.path = [];
    for (const each of [...this.nodes.values(), ...this.groups.values()]) {
      each.setAttribute("class", each.dataset.kind);
      const count = each.querySelector(".count");
      if (count) count.textContent = "";
    }
    for (const [name, edge] of this.edges) {
      this.paint(edge, false);
      const label = edge.querySelector("text");
      if (label) label.textContent = WAYS[name][1];
    }
    this.describe();
  }

  /** @param {import("./run.js").Happening} happening */
  take(happening) {
    if (happening.kind === "start") this.enter(happening.node);
    if (happening.kind === "end") this.leave(happening.node, "done", happening.result.usage);
    if (happening.kind === "told" && happening.event.event === "gate") this.say(happening.event);
    if (happening.kind === "fail") this.leave(happening.node, "failed");
  }

  /** The run has ended well. */
  finish() {
    this.go("__end__");
    this.nodes.get("__end__")?.classList.add("done");
    this.describe();
  }

  /** The run has ended, well or not: nothing works any more. */
  stop() {
    for (const each of this.element.querySelectorAll(".busy")) each.classList.remove("busy");
  }

  enter(node) {
    const group = this.groups.get(node);
    this.go(group ? `${node}:__start__` : node);
    if (group) group.classList.add("visited");
    else this.path.push(node);
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
    const ms = usage?.ms[node.split(":").pop()];
    const words = [visits > 1 && `×${visits}`, ms !== undefined && duration(ms)];
    const count = words.filter(Boolean).join("  ");
    shape.querySelector(".count").textContent = count;
    shape.classList.toggle("counted", count !== "");
  }

  /** Write beside the gate what it said. */
  say({ answer, retrieve }) {
    const label = this.edges.get(`gate ${retrieve || answer === "skipped" ? "route" : "generate"}`);
    const words = { skipped: "not asked", invalid: "unclear" }[answer];
    if (label && words) label.querySelector("text").textContent = words;
  }

  /** Light the edge to a node, over the door of the group that is left. */
  go(node) {
    const group = this.last.includes(":") ? this.last.split(":")[0] : "";
    if (group && !node.startsWith(`${group}:`)) {
      this.light(`${this.last} ${group}:__end__`);
      this.nodes.get(`${group}:__end__`)?.classList.add("done");
      this.last = `${group}:__end__`;
    }
    this.light(`${this.last} ${node}`);
    if (node.endsWith(":__start__")) this.nodes.get(node)?.classList.add("done");
    this.last = node;
  }

  light(name) {
    const edge = this.edges.get(name);
    if (!edge) return;
    this.paint(edge, true);
    edge.parentNode.append(edge); // over those that are not lit
  }

  paint(edge, lit) {
    edge.setAttribute("class", lit ? "edge lit" : edge.dataset.kind);
    edge.querySelector("path").setAttribute("marker-end", `url(#${this.arrow}${lit ? "-lit" : ""})`);
  }

  describe() {
    const way = this.path.map((node) => node.replace(":", " ")).join(", ");
    this.element.setAttribute("aria-label", way ? `Path so far: ${way}` : "The graph, no path yet");
  }

  drawGroup(name) {
    const [x, y, width, height] = GROUPS[name];
    const box = svg("rect", { x, y, width, height, rx: 12 });
    const shape = svg("g", {}, box, svg("text", { x: x + 14, y: y + 22 }, name));
    shape.dataset.kind = "group";
    this.groups.set(name, shape);
    this.element.append(shape);
  }

  drawEdge({ source, target, conditional = false }) {
    const [way, label, x, y, anchor] = WAYS[`${source} ${target}`] ?? [this.straight(source, target)];
    const edge = svg("g", {}, svg("path", { d: way }));
    edge.dataset.kind = conditional ? "edge conditional" : "edge";
    edge.dataset.edge = `${source} ${target}`;
    if (label) edge.append(svg("text", { x, y, "text-anchor": anchor ?? "start" }, label));
    this.edges.set(`${source} ${target}`, edge);
    this.lines.append(edge);
  }

  straight(source, target) {
    const [from, to] = [this.places.get(source), this.places.get(target)];
    return `M${from[0]} ${from[1] + HEIGHT / 2}L${to[0]} ${to[1] - HEIGHT / 2 - 1}`;
  }

  drawNode(id) {
    const [x, y] = this.places.get(id);
    const name = id.split(":").pop();
    const dot = name === "__start__" || name === "__end__";
    const shape = dot
      ? svg("g", {}, svg("circle", { cx: x, cy: y, r: id === name ? 7 : 5 }))
      : svg(
          "g",
          {},
          svg("rect", { x: x - WIDTH / 2, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 9 }),
          svg("text", { x, y: y + 5, class: "name" }, name),
          svg("text", { x, y: y + 13, class: "count" }),
        );
    shape.dataset.kind = dot ? "dot" : "node";
    shape.dataset.node = id;
    this.nodes.set(id, shape);
    this.element.append(shape);
  }
}

/** @param {string[]} ids @returns {Map<string, number[]>} */
function placed(ids) {
  const places = new Map();
  const strange = ids.filter((id) => !PLACES[id]);
  const foot = PLACES.__end__[1] + 56;
  for (const id of ids) {
    const at = strange.indexOf(id);
    places.set(id, PLACES[id] ?? [60 + (at % 4) * 120, foot + Math.floor(at / 4) * 50]);
  }
  return places;
}

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
