// Reading ahead: what the next launch with weights reads lies in up to six ranges of bytes (codes and scales). Workgroup x fetches `len`
// bytes from byte x · stride of each into the L2, while its own activations are on their way and the memory has little to do.
struct Range { device const uchar *p; uint total, stride, len; };
struct Ahead { Range ranges[6]; };

FN void fetch_ahead(thread const Ahead &a, uint x, uint tid, uint threads)
{
  UNROLL for (uint i = 0; i < 6; ++i) {
    const uint at = x * a.ranges[i].stride, end = min(at + a.ranges[i].len, a.ranges[i].total);
    ROLLED for (uint b = at + tid * 128; b < end; b += threads * 128) PREFETCH(a.ranges[i].p + b);
  }
}

// The arguments that say it, and the value that they make.
#define AHEAD_RANGE(i, n) IN(i, uchar, n), VAL(i + 1, uint, n##_total), VAL(i + 2, uint, n##_stride), VAL(i + 3, uint, n##_len)
#define AHEAD(i) AHEAD_RANGE(i, ahead0), AHEAD_RANGE(i + 4, ahead1), AHEAD_RANGE(i + 8, ahead2), AHEAD_RANGE(i + 12, ahead3), AHEAD_RANGE(i + 16, ahead4), AHEAD_RANGE(i + 20, ahead5)
#define AHEAD_VALUE {{{ahead0, ahead0_total, ahead0_stride, ahead0_len}, {ahead1, ahead1_total, ahead1_stride, ahead1_len}, {ahead2, ahead2_total, ahead2_stride, ahead2_len}, \
  {ahead3, ahead3_total, ahead3_stride, ahead3_len}, {ahead4, ahead4_total, ahead4_stride, ahead4_len}, {ahead5, ahead5_total, ahead5_stride, ahead5_len}}}
