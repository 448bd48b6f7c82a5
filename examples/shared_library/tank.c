/* A water tank. All its state is global, as in many a simulator: a process can have one. */
#include <math.h>

static const double SECONDS = 0.5, INFLOW = 0.5, OUTFLOW = 0.25, HEIGHT = 2.0;

static int is_open = 0;
static double level = 0.0;

/* 0, or -1 if this process has a tank already. */
int tank_open(void) {
    if (is_open) return -1;
    is_open = 1;
    return 0;
}

void tank_close(void) { is_open = 0; }

void tank_fill(double new_level) { level = new_level; }

/* Half a second with the valve open or shut; the level then. Water runs out the faster, the higher it stands. */
double tank_step(int valve_is_open) {
    level += SECONDS * ((valve_is_open ? INFLOW : 0.0) - OUTFLOW * sqrt(level));
    level = fmin(fmax(level, 0.0), HEIGHT);
    return level;
}
