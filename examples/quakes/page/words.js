// How numbers are written, and which colour a depth has.

/** Upper bounds in km and the classes that style.css colours; the legend shows the same. */
export const DEPTHS = [
  { below_km: 10, name: 'depth-0', label: 'under 10' },
  { below_km: 35, name: 'depth-1', label: '10–35' },
  { below_km: 70, name: 'depth-2', label: '35–70' },
  { below_km: 300, name: 'depth-3', label: '70–300' },
  { below_km: Infinity, name: 'depth-4', label: 'over 300 km' },
];

export const depthClass = (depth_km) => DEPTHS.find(({ below_km }) => depth_km < below_km).name;

/** `M 4.9`, with a real minus sign for the smallest ones. */
export const magnitudeText = (magnitude) => `M ${magnitude.toFixed(1).replace('-', '−')}`;

/** `6 Feb`: the day in universal time, as the seismologists count it. */
export function dayText(date) {
  return `${date.getUTCDate()} ${date.toLocaleString('en', { month: 'short', timeZone: 'UTC' })}`;
}

/** `15:50:43`, in universal time. */
export const clockText = (iso) => iso.slice(11, 19);

export const depthText = (depth_km) => `${Math.max(0, depth_km).toFixed(depth_km < 10 ? 1 : 0)} km deep`;
