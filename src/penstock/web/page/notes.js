// What people write of runs: tags and a note; runs that are archived or deleted, until that is undone.

import { known, write } from "./data.js";
import { button, element } from "./elements.js";

const named = (row) => `${row.name} of ${row.group}`;

export const tagsOf = (row) => element("span", {}, row.tags.map((tag) => element("span", { class: "tag" }, tag)), row.archived && element("span", { class: "soft" }, "archived"));

// A note that is changed where it stands. What another writes meanwhile is not lost: see the server's answer.
export function noteOf(id) {
  let field = null;
  let before = "";
  const opener = button("", edit);
  const place = element("div", { class: "note" }, opener);
  place.show = () => {
    const row = known.rows.get(id);
    if (!row) return;
    opener.textContent = row.note || "Add a note";
    opener.classList.toggle("soft", !row.note);
    opener.title = row.note;
    opener.setAttribute("aria-label", row.note ? `Note of ${named(row)}: ${row.note}` : `Add a note to ${named(row)}`);
  };

  function edit() {
    const row = known.rows.get(id);
    before = row.note;
    field = element("textarea", {
      rows: 3, maxlength: 10000, "aria-label": `Note of ${named(row)}: Enter keeps it, Escape does not`, onkeydown: key, onblur: () => before === row.note && keep(),
    });
    field.value = before;
    opener.hidden = true;
    place.append(field);
    field.focus();
  }

  function key(event) {
    event.stopPropagation(); // the page's own keys are not meant
    if (event.key === "Escape") end();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    keep();
  }

  async function keep() {
    const own = field;
    if (!own || own.readOnly) return;
    own.readOnly = own.value !== before; // asked once
    try {
      if (own.readOnly) await write({ runs: [id], note: own.value, before });
      end();
    } catch (error) {
      own.readOnly = false;
      before = known.rows.get(id)?.note;
      throw error;
    }
  }

  function end() {
    const old = field;
    const held = document.activeElement === old;
    field = null;
    old?.remove();
    opener.hidden = false;
    place.show();
    if (held) opener.focus();
  }

  place.show();
  return place;
}

// A field for a tag, and its form: what the button that is pressed says is done with the tag.
function tagForm(act, ...more) {
  const tags = element("datalist", { id: "tags" });
  const offer = () => tags.replaceChildren(...[...new Set([...known.rows.values()].flatMap((row) => row.tags))].map((tag) => element("option", { value: tag })));
  const field = element("input", { "aria-label": "Tag", placeholder: "a word", size: "12", maxlength: "40", required: true, list: "tags", onfocus: offer });
  const sent = async (event) => {
    event.preventDefault();
    await act(event.submitter.value, field.value.trim());
    field.value = "";
  };
  return [field, element("form", { class: "tools", onsubmit: sent }, field, tags, element("button", { value: "tag" }, "Add tag"), ...more)];
}

// Tags and note of one run.
export function notesOf(id) {
  const change = (way, tag) => write({ runs: [id], [way]: [tag] });
  const tags = element("span");
  const note = noteOf(id);
  const [field, form] = tagForm(change);
  form.prepend(tags);
  const place = element("div", {}, note, form);
  let shown = null;
  place.show = () => {
    note.show();
    const found = known.rows.get(id)?.tags || [];
    if (found.join(" ") === shown) return;
    shown = found.join(" ");
    const remove = (tag) => button("×", () => { field.focus(); return change("untag", tag); }, { "aria-label": `Remove tag ${tag}` });
    tags.replaceChildren(...found.map((tag) => element("span", { class: "tag" }, tag, " ", remove(tag))));
  };
  place.show();
  return place;
}

const said = element("p", { class: "said", role: "status" }); // also once another view was looked at

async function act(runs, change, text, undone) {
  const ids = runs.map((row) => row.id);
  if (!ids.length) return;
  await write({ runs: ids, ...change });
  said.replaceChildren(`${runs.length === 1 ? named(runs[0]) : `${runs.length} runs`} ${text}. `, button("Undo", async () => {
    await write({ runs: ids, ...undone });
    said.replaceChildren("Undone.");
  }));
}

const SURE_MS = 5000;

// A button that ends runs once it was pressed twice; `show` tells it which those are.
export function stopper() {
  let going = [];
  let sure = 0;
  const calm = () => { sure = 0; place.show(going); };
  const place = button("Stop", async (event) => {
    if (sure && event.detail > 1) return; // the second half of a double click
    clearTimeout(sure);
    if (!sure) {
      sure = setTimeout(calm, SURE_MS);
      place.show(going);
      return;
    }
    sure = 0;
    place.disabled = true;
    place.textContent = "Stopping…"; // a run has some seconds to end
    const ids = going.map((row) => row.id);
    await write({ runs: ids }, "/api/stop").finally(() => {
      place.disabled = false;
      place.show(ids.map((id) => known.rows.get(id)).filter(Boolean));
    });
  });
  place.show = (rows) => {
    if (place.disabled) return;
    const before = going.map((row) => row.id).join();
    going = rows.filter((row) => !row.ended);
    if (going.map((row) => row.id).join() !== before) {
      clearTimeout(sure); // nobody was asked of these
      sure = 0;
    }
    place.hidden = !going.length;
    const these = going.length > 1 ? `these ${going.length} runs` : "it";
    const text = sure ? `Sure? Press again to stop ${these}` : "Stop";
    if (place.textContent !== text) place.textContent = text;
  };
  place.show([]);
  return place;
}

// What can be done with the runs that are chosen; `said` tells what was done, and undoes it.
export function actions() {
  let chosen = [];
  const [field, form] = tagForm((way, tag) => {
    const [other, text] = way === "tag" ? ["untag", "got"] : ["tag", "lost"];
    return act(chosen.filter((row) => row.tags.includes(tag) === (way === "untag")), { [way]: [tag] }, `${text} the tag ${tag}`, { [other]: [tag] });
  }, element("button", { value: "untag" }, "Remove tag"));
  const expanded = () => tag.setAttribute("aria-expanded", String(!form.hidden));
  const tag = button("Tag…", () => {
    form.hidden = !form.hidden;
    expanded();
    if (!form.hidden) field.focus();
  });
  const archive = button("Archive", () => act(chosen.filter((row) => !row.archived), { archived: true }, "archived", { archived: false }));
  const unarchive = button("Unarchive", () => act(chosen.filter((row) => row.archived), { archived: false }, "no longer archived", { archived: true }));
  const remove = button("Delete", () => act(chosen, { deleted: true }, "deleted", { deleted: false }));
  const stop = stopper();
  form.hidden = true;
  return {
    elements: [tag, form, archive, unarchive, remove, stop],
    said,
    show(rows) {
      chosen = rows;
      stop.show(rows);
      for (const each of [tag, archive, remove]) each.disabled = !rows.length;
      form.hidden ||= !rows.length;
      expanded();
      unarchive.hidden = !rows.some((row) => row.archived);
      archive.hidden = !unarchive.hidden && rows.every((row) => row.archived);
    },
  };
}
