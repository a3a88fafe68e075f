// Opens a trace in Perfetto (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui): its page is loaded in
// a tab, and handed the bytes there; nothing is sent to its server.

const PERFETTO = "https://ui.perfetto.dev";
const PING_MS = 100;

export async function openInPerfetto(path, title) {
  const tab = window.open(PERFETTO);
  if (!tab) throw new Error("the browser has blocked the new tab: allow this page to open it");
  const [answer] = await Promise.all([fetch(path), answers(tab)]);
  if (!answer.ok) throw new Error(await answer.text());
  const buffer = await answer.arrayBuffer();
  tab.postMessage({ perfetto: { buffer, title } }, PERFETTO, [buffer]);
}

// Messages are not kept for a page that still loads: asks until it answers, or is closed.
function answers(tab) {
  return new Promise((resolve, reject) => {
    const asking = setInterval(() => (tab.closed ? end(() => reject(new Error("Perfetto's tab was closed"))) : tab.postMessage("PING", "*")), PING_MS);
    const heard = (event) => event.source === tab && event.origin === PERFETTO && event.data === "PONG" && end(resolve);
    function end(then) {
      clearInterval(asking);
      removeEventListener("message", heard);
      then();
    }
    addEventListener("message", heard);
  });
}
