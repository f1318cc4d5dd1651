// Floats of a byte (E4M3: a sign, four bits of exponent with a bias of 7, three of mantissa) beside the types of `packed.h`, of which the type F8_E4M3
// is another: a low plane of 8 bits in the order of the elements, and for each 128 the scale as f32.
static constexpr constant uint F8_E4M3 = 64, WHOLE = 64;
template <> constexpr uint low_bits<F8_E4M3>() { return 8; }
template <> constexpr uint record_chunks<F8_E4M3>() { return 4; }
template <> constexpr uint record_bytes<F8_E4M3>() { return 4; }
template <> constexpr uint factors_of<F8_E4M3>() { return WHOLE; }

// The number of the lowest byte.
FN float float8(uint v)
{
  const uint b = v & 127u;
  const float m = b < 8 ? float(b) * (1.0f / 512.0f) : of_bits((b << 20) + (120u << 23));
  return (v & 128u) != 0 ? -m : m;
}
