// The state of the page is its address: #/view?key=value&key=value. A link shows another person the same.

export function read() {
  const [path, query] = location.hash.replace(/^#\//, "").split("?");
  const [view, ...rest] = path.split("/").map(decodeURIComponent);
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
  history.replaceState(null, "", `#/${path}${text ? "?" + text : ""}`);
}

export function go(view, query = {}) {
  const text = new URLSearchParams(Object.entries(query).flatMap(([key, value]) => [value].flat().map((each) => [key, each])));
  location.hash = `#/${view}${text.size ? "?" + text : ""}`;
}
