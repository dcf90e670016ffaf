// Renews what the page shows as held, while somebody can see the page: a browser that fetches it ahead keeps nothing.
//
//   <p data-taskclaim-until>…</p> <p data-taskclaim-kept hidden>…</p> <p data-taskclaim-lost hidden role="alert">…</p>
//   <form method="post" data-taskclaim-renew="15"> …
//
// Every 15 seconds it sends the hidden fields of the form with act=renew, and then shows one of the last two.

(() => {
  "use strict";

  const form = document.querySelector("form[data-taskclaim-renew]");
  if (!form) return;
  const every = Number(form.dataset.taskclaimRenew) * 1000;
  let sentAt = -Infinity;

  function show(name, visible) {
    for (const element of document.querySelectorAll(`[data-taskclaim-${name}]`)) element.hidden = !visible;
  }

  async function renew() {
    if (document.hidden) return;
    sentAt = Date.now();
    const body = new URLSearchParams({ act: "renew" });
    for (const field of form.querySelectorAll("input[type=hidden]")) body.append(field.name, field.value);
    try {
      const answer = await fetch(location.pathname, { method: "POST", body });
      show("kept", answer.status === 204);
      show("lost", answer.status !== 204);
      // Where it was kept, the moment that was shown is not its end any more.
      if (answer.status === 204) show("until", false);
    } catch {
      // Nobody has answered, and the next turn asks again.
    }
  }

  document.addEventListener("visibilitychange", renew);
  window.addEventListener("pageshow", (event) => { if (event.persisted) renew(); });
  setInterval(() => { if (Date.now() - sentAt >= every) renew(); }, 1000);
  renew();
})();
