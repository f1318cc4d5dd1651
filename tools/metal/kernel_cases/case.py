"""A launch with its reference, and numbers that stand for something else in arguments."""
import array

from kernel_data import one

FIXED = 0xffffffff  # The slot of a count that is known: no word of the step block.
NO_NORM, QUANTISED = -1.0, -2.0  # What stands for a norm's epsilon.
# The orders in which a case runs, by a seed (0 for that of the threads, else backwards), and whether subnormal numbers count as 0.
RUNS = [(0, False), (3, True)]


class Case:
    """A launch. `args`: buffers, numbers, None for a byte that is not used; `results`: the reference by the argument's place, of what
    `read` makes numbers, within `bound` (of the greatest magnitude); `streams`: places that are read once, or tuples of places that
    are so together."""

    def __init__(self, source, kernel, grid, threads, args, results, read=None, bound=1e-5, streams=(), shared=0):
        self.source, self.kernel, self.grid, self.threads = source, kernel, grid, threads
        self.args = [a if a is None or isinstance(a, (array.array, bytearray)) else one(a) for a in args]
        self.results, self.read, self.bound = results, read or {}, bound
        self.streams, self.shared = streams, shared

    def run(self, library, runs=RUNS):
        """What is wrong, or None."""
        for seed, flush in runs:
            buffers = [bytearray(1) if a is None else a[:] for a in self.args]
            done = library.run(self.kernel, self.grid, self.threads, buffers, [self.shared] if self.shared else (), seed, flush=flush, backwards=seed != 0)
            for place, want in self.results.items():
                got = self.read.get(place, list)(buffers[place])
                size = max(max(map(abs, want)), 1e-30)
                worst = max((abs(g - w), i) for i, (g, w) in enumerate(zip(got, want)))
                if len(got) < len(want) or not worst[0] <= self.bound * size:
                    i = worst[1]
                    return f"argument {place}, element {i}: {got[i]}, not {want[i]}"
                kept = self.read.get(place, list)(self.args[place])[len(want):]
                if list(got[len(want):]) != list(kept):
                    return f"argument {place}: written behind its end"
            for places in self.streams:
                places = places if isinstance(places, tuple) else (places,)
                loaded, unique = sum(done.loaded[p] for p in places), sum(done.unique[p] for p in places)
                if loaded > 1.1 * unique:
                    return f"argument {places}: {loaded} bytes loaded, {unique} different"
        return None
