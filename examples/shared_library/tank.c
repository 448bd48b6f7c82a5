/* A water tank. All its state is global, as in many simulators, so a process can have only one. */
#include <math.h>

static const double SECONDS = 0.5, INFLOW = 0.5, OUTFLOW = 0.25, HEIGHT = 2.0;

static int is_open = 0;
static double level = 0.0;

/* Returns 0, or -1 if this process already has a tank. */
int tank_open(void) {
    if (is_open) return -1;
    is_open = 1;
    return 0;
}

void tank_close(void) { is_open = 0; }

void tank_fill(double new_level) { level = new_level; }

/* Steps half a second with the valve open or closed, and returns the level. A higher level drains faster. */
double tank_step(int valve_is_open) {
    level += SECONDS * ((valve_is_open ? INFLOW : 0.0) - OUTFLOW * sqrt(level));
    level = fmin(fmax(level, 0.0), HEIGHT);
    return level;
}
