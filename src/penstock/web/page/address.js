// The state of the page is its address: #/view?key=value&key=value. A link shows another person the same.

const WRITE_MS = 100; // of more than 200 changes in 10 s, browsers take no notice
let address = location.hash;
let shown = address;
let shown_ms = -WRITE_MS;
let writing = 0;

addEventListener("hashchange", () => {
  clearTimeout(writing);
  address = shown = location.hash;
});

function write() {
  if (location.hash !== shown) return; // somebody has just gone elsewhere
  history.replaceState(null, "", address);
  [shown, shown_ms] = [location.hash, performance.now()];
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; } // somebody has written it by hand
}

export function read() {
  const [path, query] = address.replace(/^#\//, "").split("?");
  const [view, ...rest] = path.split("/").map(decoded);
  return { view: view || "now", rest, query: new URLSearchParams(query || "") };
}

export function change(changes) {
  const { view, rest, query } = read();
  for (const [key, value] of Object.entries(changes)) {
    query.delete(key);
    for (const each of [value].flat()) if (each !== "" && each !== null && each !== undefined) query.append(key, each);
  }
  const path = [view, ...rest].map(encodeURIComponent).join("/");
  const text = query.toString();
  address = `#/${path}${text ? "?" + text : ""}`;
  clearTimeout(writing);
  const left_ms = shown_ms + WRITE_MS - performance.now();
  if (left_ms <= 0) write();
  else writing = setTimeout(write, left_ms);
}

export function go(view, query = {}) {
  const text = new URLSearchParams(Object.entries(query).flatMap(([key, value]) => [value].flat().map((each) => [key, each])));
  location.hash = `#/${view}${text.size ? "?" + text : ""}`;
}
