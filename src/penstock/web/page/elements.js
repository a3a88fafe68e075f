// Elements of the page. Text is always text: nothing that a run is called or prints becomes markup.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "colour") made.style.background = value;
    else if (key === "width") made.style.width = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const dot = (colour) => element("span", { class: "dot", colour, "aria-hidden": "true" });

export function button(label, act, attributes = {}) {
  return element("button", { type: "button", onclick: act, ...attributes }, label);
}
