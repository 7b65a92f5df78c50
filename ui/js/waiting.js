  // What is left of a run counts down between the server's updates, in the words of left_line() in ui/html/status.py.
  const COUNT_MS = 1000;
  const words = (seconds) => {
    const whole = Math.round(seconds);
    if (whole < 2) return "a moment left";
    return whole < 90 ? `about ${whole} s left` : `about ${Math.round(whole / 60)} min left`;
  };
  let counted = { said: null, since: 0 };
  const count = () => {
    const place = document.querySelector("#status [data-left]");
    if (!place) return;
    if (counted.said !== place.dataset.left) counted = { said: place.dataset.left, since: performance.now() };
    const text = words(Number(counted.said) - (performance.now() - counted.since) / 1000);
    if (place.textContent !== text) place.textContent = text; // else every look would call for another one
  };
  setInterval(count, COUNT_MS);
