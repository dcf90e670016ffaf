/* Keeps the control room current: fetches the part that changes and puts in only what is different, so that the
   keyboard's focus, open details and what somebody is typing stay. Without it the page is reloaded by hand. */
"use strict";
(() => {
    const live = document.getElementById("tc-live");
    if (!live) return;
    const say = document.getElementById("tc-say");
    const fresh = document.getElementById("tc-fresh"), every = document.getElementById("tc-every");
    let timer = null, waiting = null, announced = announcements(), etag = "";

    /* Elements that are the same thing before and after. */
    const alike = (one, other) =>
        one.nodeType === other.nodeType && one.nodeName === other.nodeName &&
        (one.nodeType !== 1 || (one.id === other.id && one.dataset.key === other.dataset.key));

    function follow(old, fresh) {
        if (old.nodeType !== 1) {
            if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
            return;
        }
        // What the database did not answer in time stays as it was.
        if (isMine(old) || fresh.matches("[data-late]")) return;
        for (const { name } of [...old.attributes]) {
            if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
        }
        for (const { name, value } of fresh.attributes) {
            if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
        }
        followChildren(old, fresh);
    }

    /* What somebody has touched is theirs until it is sent: a form, or one field with the hidden input that says what
       was there before. */
    const OWN = "[data-own]";
    const isMine = (node) =>
        node.matches("[data-mine]") ||
        (node.matches(OWN) && node.contains(document.activeElement) &&
            document.activeElement.matches("input, select, textarea"));

    function followChildren(old, fresh) {
        const coming = [...fresh.childNodes];
        let at = old.firstChild;
        for (const node of coming) {
            let same = at;
            while (same && !alike(same, node)) same = same.nextSibling;
            if (!same) {
                old.insertBefore(document.importNode(node, true), at);
                continue;
            }
            while (at !== same) {
                const gone = at;
                at = at.nextSibling;
                gone.remove();
            }
            follow(same, node);
            at = same.nextSibling;
        }
        while (at) {
            const gone = at;
            at = at.nextSibling;
            gone.remove();
        }
    }

    function announcements() {
        const found = [...live.querySelectorAll("[data-announce]")];
        return new Map(found.map((node, index) => [node.dataset.key || index, node.dataset.announce]));
    }

    /* Only what changed its state is said aloud. */
    function tell() {
        const now = announcements();
        const news = [...now].filter(([key, text]) => announced.has(key) && announced.get(key) !== text);
        if (news.length) say.textContent = news.map(([, text]) => text).join(" ");
        announced = now;
    }

    function asOf(words, isOld) {
        fresh.classList.toggle("is-old", isOld);
        document.getElementById("tc-fresh-at").textContent = words.replace("%s", live.dataset.at);
    }

    async function refresh() {
        waiting = new AbortController();
        const limit = setTimeout(() => waiting.abort(), 15000);
        try {
            const answer = await fetch(live.dataset.url, {
                credentials: "same-origin", redirect: "manual", signal: waiting.signal,
                headers: { "X-Requested-With": "XMLHttpRequest", "If-None-Match": etag },
            });
            if (answer.type === "opaqueredirect" || answer.status === 403) {
                asOf(live.dataset.out, true);
                stop();
                timer = false;
                return;
            }
            if (!answer.ok && answer.status !== 304) throw new Error(answer.statusText);
            if (answer.ok) {
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                followChildren(live, page.body);
                etag = answer.headers.get("ETag") || "";
                tell();
                read();
            }
            // What differs in each answer, so that the rest may be the same as before.
            for (const input of live.querySelectorAll("[name=csrfmiddlewaretoken]")) {
                input.value = answer.headers.get("Taskclaim-Token");
            }
            live.dataset.at = decodeURIComponent(answer.headers.get("Taskclaim-As-Of"));
            asOf(live.dataset.now, false);
        } catch (error) {
            if (!document.hidden) asOf(live.dataset.old, true);
        } finally {
            clearTimeout(limit);
            later();
        }
    }

    /* Refreshes again when it is time, unless the user is signed out, looks elsewhere or has frozen the page. */
    function later() {
        if (timer !== false && !document.hidden && Number(every.value)) {
            clearTimeout(timer);
            timer = setTimeout(refresh, Number(every.value));
        }
    }

    const KEPT = "taskclaim-every";
    every.value = localStorage.getItem(KEPT) || every.value;
    if (!every.value) every.selectedIndex = 0;
    every.parentNode.hidden = false;
    every.addEventListener("change", () => {
        localStorage.setItem(KEPT, every.value);
        if (timer === false) return;
        stop();
        later();
    });

    /* The slot of the chart that the slider stands at, in words; the pointer moves the slider. */
    document.documentElement.classList.add("tc-js");

    function read() {
        const slider = live.querySelector("#tc-readout input");
        const slot = slider && live.querySelectorAll("#tc-slots > li")[slider.value];
        if (!slot) return;
        slider.nextElementSibling.textContent = slot.textContent;
        slider.setAttribute("aria-valuetext", slot.textContent);
    }

    live.addEventListener("pointermove", (event) => {
        const plot = event.target.closest(".tc-plot");
        const slider = plot && live.querySelector("#tc-readout input");
        if (!slider) return;
        const { left, width } = plot.getBoundingClientRect();
        slider.value = Math.floor((event.clientX - left) / width * (Number(slider.max) + 1));
        slider.parentNode.dataset.mine = "";
        read();
    });

    function stop() {
        clearTimeout(timer);
        timer = null;
    }

    document.addEventListener("visibilitychange", () => {
        if (timer === false) return;
        stop();
        if (document.hidden) waiting?.abort();
        else if (Number(every.value)) refresh();
    });

    live.addEventListener("input", (event) => {
        const own = event.target.closest(OWN);
        if (own) own.dataset.mine = "";
        read();
    });

    read();
    later();
})();
