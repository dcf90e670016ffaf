// Renews what the page shows as held while somebody can see the page, and says when a claim is lost.
//
//   <div data-taskclaim-heartbeat="/articles/" data-every="60" …><input name="csrfmiddlewaretoken" …>
//     <p data-taskclaim-notice hidden></p></div>
//   <li data-taskclaim-pk="17" data-taskclaim-token="0:user:3"> … <span data-taskclaim-left></span>
//     <span data-taskclaim-why></span></li>
//
// Sends a "taskclaim:lost" event from the element of each claim that is found lost.

(() => {
  "use strict";

  const panel = document.querySelector("[data-taskclaim-heartbeat]");

  function copying() {
    for (const button of document.querySelectorAll("[data-taskclaim-copy]")) {
      const text = button.parentElement.querySelector("textarea, input[type=text]");
      if (!text) continue;
      button.hidden = false;
      button.addEventListener("click", async () => {
        text.select();
        try {
          await navigator.clipboard.writeText(text.value);
        } catch {
          document.execCommand("copy");
        }
        button.textContent = button.dataset.done;
      });
    }
  }

  copying();
  if (!panel) return;

  const notice = panel.querySelector("[data-taskclaim-notice]");
  const csrf = panel.querySelector("[name=csrfmiddlewaretoken]");
  const every = Number(panel.dataset.every) * 1000;
  const held = [...document.querySelectorAll("[data-taskclaim-pk]")].map((element) => ({ element, ends: null }));
  let asking = false, askedAt = 0, failures = 0;

  function standing() {
    return held.filter((one) => !one.element.hasAttribute("data-taskclaim-lost"));
  }

  function notify(words) {
    if (notice.textContent === words && notice.hidden === !words) return;
    notice.textContent = words;
    notice.hidden = !words;
  }

  function words(milliseconds) {
    const seconds = Math.max(0, Math.round(milliseconds / 1000));
    if (seconds < 60) return panel.dataset.leftS.replace("%s", seconds);
    const minutes = Math.floor(seconds / 60);
    if (minutes < 120) return panel.dataset.leftMin.replace("%s", minutes);
    return panel.dataset.leftH.replace("%s", Math.floor(minutes / 60));
  }

  function show() {
    for (const one of standing()) {
      const place = one.element.querySelector("[data-taskclaim-left]");
      if (place && one.ends !== null) place.textContent = words(one.ends - Date.now());
    }
  }

  function lose(one, why) {
    one.element.setAttribute("data-taskclaim-lost", "");
    const place = one.element.querySelector("[data-taskclaim-why]");
    if (place) place.textContent = why;
    const left = one.element.querySelector("[data-taskclaim-left]");
    if (left) left.textContent = "";
    if (held.length === 1 || !place) notify(panel.dataset.lost);
    one.element.dispatchEvent(new CustomEvent("taskclaim:lost", { bubbles: true, detail: { why } }));
  }

  function update(answer) {
    notify(standing().length < held.length && held.length === 1 ? panel.dataset.lost : "");
    const byKey = new Map(held.map((one) => [one.element.dataset.taskclaimPk, one]));
    for (const { pk, left } of answer.held) {
      if (byKey.has(pk)) byKey.get(pk).ends = left === null ? null : Date.now() + left * 1000;
    }
    for (const { pk, why } of answer.lost) {
      if (byKey.has(pk)) lose(byKey.get(pk), why);
    }
    show();
  }

  async function ping() {
    const rows = standing();
    if (asking || !rows.length || document.hidden) return;
    asking = true;
    askedAt = Date.now();
    const body = new URLSearchParams({ act: "ping" });
    for (const { element } of rows) {
      body.append("pk", element.dataset.taskclaimPk);
      body.append("token", element.dataset.taskclaimToken);
    }
    try {
      const answer = await fetch(panel.dataset.taskclaimHeartbeat, {
        method: "POST",
        body,
        credentials: "same-origin",
        headers: { "X-CSRFToken": csrf ? csrf.value : "", Accept: "application/json" },
      });
      const isJson = (answer.headers.get("Content-Type") || "").startsWith("application/json");
      if (isJson && answer.ok) update(await answer.json());
      else if (answer.redirected || answer.status === 403) notify(panel.dataset.out);
      else throw new Error(answer.status);
      failures = 0;
    } catch {
      failures += 1;
      // One answer that got lost on the way is nothing to worry anybody with.
      if (failures > 1) notify(panel.dataset.silent);
    } finally {
      asking = false;
    }
  }

  function turn() {
    const due = failures ? Math.min(every, 5000) : every;
    if (Date.now() - askedAt >= due) ping();
    show();
  }

  document.addEventListener("visibilitychange", ping);
  window.addEventListener("pageshow", (event) => { if (event.persisted) ping(); });
  setInterval(turn, 1000);
  ping();
})();
