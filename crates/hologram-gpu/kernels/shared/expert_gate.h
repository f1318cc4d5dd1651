// What follows products with experts' matrices: a gate of the first by the second, or nothing. For `experts.k` and `experts_tiles.cu`.
enum After : uint { STORE, SWIGLU, RELU2, CLAMPED_SWIGLU };

// gpt-oss' gate.
FN float clamped_swiglu(float gate, float up)
{
  const float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  return g * (1.0f / (1.0f + exp(-1.702f * g))) * (u + 1.0f);
}
FN float gate_value(uint after, float gate, float up)
{
  return after == SWIGLU ? gate * (1.0f / (1.0f + exp(-gate))) * up : after == RELU2 ? relu2(gate, up) : clamped_swiglu(gate, up);
}
