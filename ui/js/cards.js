  // A point or cell of a figure whose lanes it shows opens its lane's card; of many lanes it is drawn for that first.
  const drawnLanes = () => document.querySelector("#legend [data-drawn]")?.dataset.drawn.split(" ").map(Number) ?? [];
  let opensCard = null; // the lane whose card is waited for
  const openCard = (lane) => {
    if (!Number.isInteger(lane)) return;
    opensCard = lane;
    if (drawnLanes().includes(lane)) toCard();
    else exchange(lane);
  };
  const toCard = () => {
    const at = drawnLanes().indexOf(opensCard);
    const card = at < 0 ? null : document.getElementById(`card-${at + 1}`);
    if (!card?.checkVisibility()) return;
    opensCard = null;
    card.tabIndex = -1;
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "center", inline: "nearest" });
  };
