// Shortcuts, and renewal of the lease while the page is open. The page works without this file.
"use strict";

const typing = (target) => target instanceof Element && target.closest("input, textarea, select") !== null;

document.addEventListener("keydown", (event) => {
  if (typing(event.target)) {
    if (event.key === "Escape") {
      event.target.blur();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const button = event.target.closest("details")?.querySelector("button[name=action]");
      if (button) {
        event.preventDefault();
        button.click();
      }
    }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
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

// Each form has a field for the note. They are kept equal, so that the note is sent with whichever form decides.
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
    const body = new URLSearchParams({ form_token: form.form_token.value, lease: form.lease.value });
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
