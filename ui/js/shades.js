  // Colours of numbers, on the ground that is shown.
  const SCALE = DIVERGING.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const SCALE_DARK = DIVERGING_DARK.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const shadeOf = (code, scale) => {
    const at = ((code / 127 + 1) / 2) * (scale.length - 1);
    const low = Math.min(Math.floor(at), scale.length - 2);
    return scale[low].map((part, index) => part + (scale[low + 1][index] - part) * (at - low));
  };
  const colorsOf = () => (isDark() ? SEQUENTIAL_DARK : SEQUENTIAL).map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
