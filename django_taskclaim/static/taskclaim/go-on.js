// Sends the form of an act that is not at its end, so that nobody has to press "Go on". "Stop here" stops it.
"use strict";
{
    const form = document.querySelector("[data-taskclaim-go-on]");
    if (form) {
        const timer = window.setTimeout(() => form.submit(), 300);
        document.addEventListener("click", (event) => {
            if (event.target.closest(".taskclaim-back")) {
                window.clearTimeout(timer);
            }
        });
    }
}
