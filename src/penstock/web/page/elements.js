// Elements of the page. Text is always text: nothing that a run is called or prints becomes markup.

import { colour } from "./data.js";
import { share } from "./figures.js";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "colour") made.style.background = value;
    else if (key === "width" || key === "left") made.style[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const dot = (colour) => element("span", { class: "dot", colour, "aria-hidden": "true" });

export const runLink = ({ id, name }) => [dot(colour(id)), element("a", { href: `#/run/${id}` }, name)];

export const term = (name, ...value) => [element("dt", { class: "soft" }, name), element("dd", {}, ...value)];

// A bar that a part of its whole fills.
export function bar(label, part, tint) {
  return element("div", { class: "bar", role: "img", "aria-label": `${label} ${share(part)}` },
    element("span", { colour: tint, width: `${Math.min(100, 100 * part)}%` }));
}

export const noRuns = (name = "p", attributes = {}) => element(name, { class: "empty", ...attributes }, "No runs yet. Start one with: penstock run train.py");

export const notRecorded = () => element("span", { class: "soft" }, "not recorded: it has read no DataLoader and no feed");

export function button(label, act, attributes = {}) {
  return element("button", { type: "button", onclick: act, ...attributes }, label);
}

// Offer choices, each a value and its text, unless they stand there already; choose one.
export function fill(select, choices, value) {
  if ([...select.options].map((each) => each.value).join("\n") !== choices.map(([key]) => key).join("\n")) select.replaceChildren(...choices.map(([key, label]) => element("option", { value: key }, label)));
  select.value = value;
}

// What somebody has in hand. To ask for it costs a layout of the page once something has changed.
const inHand = () => [document.activeElement, getSelection().anchorNode, getSelection().focusNode].filter(Boolean);

// Put nodes into a place, in order: what is there stays, and what somebody has in hand is not even moved.
export function arrange(place, nodes, held = inHand()) {
  const staying = new Set(nodes);
  for (const each of [...place.childNodes]) if (!staying.has(each)) each.remove();
  let next = place.firstChild;
  for (const each of nodes) {
    if (each !== next && each.parentNode === place && held.some((node) => each.contains(node))) {
      while (next !== each) {
        const after = next.nextSibling;
        place.append(next);
        next = after;
      }
    }
    if (each === next) next = each.nextSibling;
    else place.insertBefore(each, next);
  }
}

// Make what is in a place like what was made anew: what is the same already stays, listeners too. Those of one
// data-id are the same thing, wherever they stand.
export function update(old, made, held = inHand()) {
  const named = new Map([...old.children].filter((each) => each.dataset.id).map((each) => [each.dataset.id, each]));
  const others = [...old.childNodes].filter((each) => !each.dataset?.id);
  arrange(old, [...made.childNodes].map((child) => {
    const id = child.dataset?.id;
    const at = id ? -1 : others.findIndex((each) => each.nodeName === child.nodeName);
    const there = id ? named.get(id) : others.splice(at, at < 0 ? 0 : 1)[0];
    if (!there) return child;
    if (child.nodeType === Node.TEXT_NODE) {
      if (there.nodeValue !== child.nodeValue) there.nodeValue = child.nodeValue;
      return there;
    }
    for (const { name } of [...there.attributes]) if (!child.hasAttribute(name)) there.removeAttribute(name);
    for (const { name, value } of child.attributes) {
      if (there.getAttribute(name) === value) continue;
      if (name === "style") there.style.cssText = value; // as an attribute, the page's own rules forbid it
      else there.setAttribute(name, value);
    }
    update(there, child, held);
    return there;
  }), held);
}
