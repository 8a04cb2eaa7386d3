// Shortcuts, and renewal of the lease while the page is open. The page works without this file.
"use strict";

const typing = (target) =>
  target instanceof Element && target.closest("input:not([type=radio]), textarea, select") !== null;

// Fields that are decided one by one: a key decides the box in focus and goes on to the next open one.
const fields = [...document.querySelectorAll("[data-field]")];
const decided = (field) => field.querySelector("input[type=radio]:checked") !== null;
const step = (from, by) => fields[Math.min(Math.max(fields.indexOf(from) + by, 0), fields.length - 1)];
const nextOpen = (from) => {
  const at = fields.indexOf(from);
  return [...fields.slice(at + 1), ...fields.slice(0, at)].find((field) => !decided(field));
};
const goOn = (field) => (nextOpen(field) ?? document.querySelector(".by-field [data-key=s]")).focus();
const decide = (field, way) => {
  const radio = field.querySelector(`[data-way="${way}"]`);
  const box = field.querySelector("[name^='value:']");
  radio.checked = true;
  field.dataset.decided = radio.value;
  if (way === "e") {
    box.focus();
    box.select();
  } else {
    goOn(field);
  }
};
const byField = (event) => {
  const field = (event.target instanceof Element && event.target.closest("[data-field]")) || fields[0];
  const key = event.key.toLowerCase();
  if (["a", "r", "e"].includes(key)) decide(field, key);
  else if (key === "j") step(field, 1).focus();
  else if (key === "k") step(field, -1).focus();
  else return false;
  event.preventDefault();
  return true;
};
fields.forEach((field) => {
  const box = field.querySelector("[name^='value:']");
  field.addEventListener("change", () => { field.dataset.decided = field.querySelector("input:checked")?.value ?? ""; });
  box.addEventListener("input", () => {
    field.querySelector("[data-way=e]").checked = true;
    field.dataset.decided = "edit";
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault(); // Enter ends the edit; it must not send the form, nor begin a line
    goOn(field);
  });
});
fields[0]?.focus({ preventScroll: true });

document.addEventListener("keydown", (event) => {
  if (typing(event.target)) {
    if (event.key === "Escape") {
      event.target.blur();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const button = event.target.closest("details, .by-field")?.querySelector("button[name=action]");
      if (button) {
        event.preventDefault();
        button.click();
      }
    }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (fields.length && byField(event)) return;
  const found = document.querySelector(`[data-key="${CSS.escape(event.key.toLowerCase())}"]`);
  if (!found) return;
  event.preventDefault();
  if (found instanceof HTMLDetailsElement) {
    found.open = true;
    found.querySelector("textarea")?.focus();
  } else {
    found.click();
  }
});

// Each form has a box for the note. They are kept equal, so that the note is sent with whichever form decides.
const notes = document.querySelectorAll("input[name=note]");
notes.forEach((note) => {
  note.addEventListener("input", () => notes.forEach((other) => { other.value = note.value; }));
  // Enter must not press the first button by accident.
  note.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
});

// A decision is sent once, even if the key is pressed again or another form is sent.
let sent = false;
document.addEventListener("submit", (event) => {
  if (sent) event.preventDefault();
  sent = true;
});
window.addEventListener("pageshow", () => { sent = false; });

const article = document.querySelector("[data-lease]");
if (article) {
  const shown = document.querySelector("#countdown");
  let length = Number(article.dataset.lease);
  let until = performance.now() + length * 1000;
  let lost = false;

  const words = (s) => (s >= 60 ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s` : `${Math.floor(s)} s`);
  const show = (text) => {
    const place = document.querySelector(".lease");
    place.textContent = text;
    place.classList.add("over");
  };

  const renew = async () => {
    const form = document.querySelector("#decide");
    const body = new URLSearchParams({ lease: form.lease.value });
    try {
      const answer = await fetch(`/items/${article.dataset.item}/renew`, {
        method: "POST", body, headers: { Accept: "application/json" }, redirect: "error",
      });
      if (answer.ok) {
        length = (await answer.json()).seconds;
        until = performance.now() + length * 1000;
      } else {
        lost = true;
        const problem = await answer.json();
        show(problem.error);
      }
    } catch {
      // No connection: the countdown goes on and the next attempt follows.
    }
  };

  let asked = performance.now();
  let active = performance.now();
  for (const kind of ["keydown", "pointermove", "pointerdown", "scroll"]) {
    document.addEventListener(kind, () => { active = performance.now(); }, { passive: true });
  }
  setInterval(() => {
    if (lost) return;
    const left = (until - performance.now()) / 1000;
    if (left <= 0) show("your time is over; another reviewer can take this item");
    else if (shown.isConnected) shown.textContent = words(left);
    // Renewed only while the reviewer is active: a forgotten tab gives its item back.
    const third = (length * 1000) / 3;
    if (performance.now() - asked > third && performance.now() - active < length * 1000) {
      asked = performance.now();
      renew();
    }
  }, 1000);
}
