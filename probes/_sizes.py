"""Burst sizes shared by the probes of isolated bursts."""

# Warp-stores per warp. Multiples of four where possible: the loop is unrolled by four and its remainder costs extra, which is the
# instrument's and not the link's. 1 to 3 stay, because with 8 or 16 warps the knee lies there.
STORES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
QUICK_STORES = (1, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 256, 512)  # the long ones for R: one warp saturates slowly
MAX_WARP_STORES = 2048  # per producer and burst, 1 MB: long enough for the slope, short enough for thousands of schedules


def stores_for(warps: int, quick: bool) -> list[int]:
    """Sizes for a producer of `warps` warps, in warp-stores per warp."""
    if quick:
        return list(QUICK_STORES)
    small = warps >= 8
    return [n for n in STORES if n * warps <= MAX_WARP_STORES and (n % 4 == 0 or n < 3 or small)]
