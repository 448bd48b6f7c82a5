/* Many CartPoles. cartpole.py allocates the memory; see docs/native-environments.md.

   The rules are those of Gymnasium's CartPole-v1 (Barto, Sutton and Anderson, 1983): a cart on a track, a pole on the
   cart, a push to the left or to the right in every step of 0.02 s. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 500, CHUNK = 64, MAX_THREADS = 64 };

static const double GRAVITY = 9.8, TOTAL_MASS = 1.1, POLE_MASS = 0.1, HALF_LENGTH = 0.5, FORCE = 10.0, TAU = 0.02;
static const double MAX_POSITION = 2.4, MAX_ANGLE = 12 * 2 * M_PI / 360;

/* Where a step reads and writes: what jaxenvs.sb3.Buffers has. */
typedef struct {
    const int64_t *actions;
    float *observation, *reward;
    uint8_t *terminated, *truncated;
    float *final_observation;
} Buffers;

struct Pool;

typedef struct {
    struct Pool *pool;
    int first, last; /* its environments */
    pthread_t thread;
} Worker;

/* One array for each quantity, so that the compiler steps several environments with one instruction. */
typedef struct Pool {
    int num_envs, num_workers;
    double *position, *velocity, *angle, *rotation;
    int32_t *steps;
    uint64_t *random;

    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    uint64_t round; /* its change tells the workers that there is work */
    int busy, closing;
    Buffers buffers;
    Worker workers[MAX_THREADS];
} Pool;

/* splitmix64: one generator per environment, so that its episodes do not depend on the number of environments. */
static double uniform(uint64_t *random) {
    uint64_t z = (*random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void begin_episode(Pool *p, int i) {
    p->position[i] = 0.1 * uniform(&p->random[i]) - 0.05;
    p->velocity[i] = 0.1 * uniform(&p->random[i]) - 0.05;
    p->angle[i] = 0.1 * uniform(&p->random[i]) - 0.05;
    p->rotation[i] = 0.1 * uniform(&p->random[i]) - 0.05;
    p->steps[i] = 0;
}

static void observe(const Pool *p, int i, float *observation) {
    observation[4 * i] = (float)p->position[i];
    observation[4 * i + 1] = (float)p->velocity[i];
    observation[4 * i + 2] = (float)p->angle[i];
    observation[4 * i + 3] = (float)p->rotation[i];
}

static void step_range(Pool *p, const Buffers *b, int first, int last) {
    double *restrict x = p->position, *restrict v = p->velocity, *restrict a = p->angle, *restrict w = p->rotation;
    for (int i = first; i < last; i++) {
        /* An angle is below MAX_ANGLE until its episode ends. Up to there, these polynomials are exact to 1e-12. */
        double s = a[i] * a[i];
        double sine = a[i] * (1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72))));
        double cosine = 1 - s / 2 * (1 - s / 12 * (1 - s / 30 * (1 - s / 56 * (1 - s / 90))));
        double force = b->actions[i] ? FORCE : -FORCE;
        double push = (force + POLE_MASS * HALF_LENGTH * w[i] * w[i] * sine) / TOTAL_MASS;
        double spin = (GRAVITY * sine - cosine * push) /
                      (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / TOTAL_MASS));
        double acceleration = push - POLE_MASS * HALF_LENGTH * spin * cosine / TOTAL_MASS;
        x[i] += TAU * v[i];
        v[i] += TAU * acceleration;
        a[i] += TAU * w[i];
        w[i] += TAU * spin;
    }
    for (int i = first; i < last; i++) {
        p->steps[i]++;
        b->reward[i] = 1;
        b->terminated[i] = fabs(x[i]) > MAX_POSITION || fabs(a[i]) > MAX_ANGLE;
        b->truncated[i] = p->steps[i] >= MAX_STEPS;
        observe(p, i, b->observation);
        if (b->terminated[i] || b->truncated[i]) {
            observe(p, i, b->final_observation);
            begin_episode(p, i);
            observe(p, i, b->observation);
        }
    }
}

static void *work(void *argument) {
    Worker *worker = argument;
    Pool *p = worker->pool;
    uint64_t round = 0;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (p->round == round && !p->closing) pthread_cond_wait(&p->work, &p->mutex);
        if (p->closing) break;
        round = p->round;
        pthread_mutex_unlock(&p->mutex);
        step_range(p, &p->buffers, worker->first, worker->last);
        pthread_mutex_lock(&p->mutex);
        if (--p->busy == 0) pthread_cond_signal(&p->finished);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* Starts a step and returns at once. `actions` and the memory of `buffers` must live until cartpole_recv. */
void cartpole_send(Pool *p, const Buffers *buffers) {
    pthread_mutex_lock(&p->mutex);
    p->buffers = *buffers;
    p->busy = p->num_workers;
    p->round++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
}

void cartpole_recv(Pool *p) {
    pthread_mutex_lock(&p->mutex);
    while (p->busy) pthread_cond_wait(&p->finished, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

/* Steps in the calling thread if there are no workers. */
void cartpole_step(Pool *p, const Buffers *buffers) {
    if (p->num_workers) {
        cartpole_send(p, buffers);
        cartpole_recv(p);
    } else {
        step_range(p, buffers, 0, p->num_envs);
    }
}

/* Starts the first episodes of these seeds, or the next episodes if seeds is NULL. */
void cartpole_reset(Pool *p, const uint64_t *seeds, float *observation) {
    for (int i = 0; i < p->num_envs; i++) {
        if (seeds) p->random[i] = seeds[i];
        begin_episode(p, i);
        observe(p, i, observation);
    }
}

void cartpole_close(Pool *p) {
    pthread_mutex_lock(&p->mutex);
    p->closing = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (int k = 0; k < p->num_workers; k++) pthread_join(p->workers[k].thread, NULL);
    pthread_mutex_destroy(&p->mutex);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->finished);
    free(p->position);
    free(p->steps);
    free(p->random);
    free(p);
}

/* Returns NULL if there is no memory or no thread. */
Pool *cartpole_new(int num_envs, int num_workers) {
    Pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    p->num_envs = num_envs;
    p->position = calloc(4 * (size_t)num_envs, sizeof *p->position);
    p->steps = calloc((size_t)num_envs, sizeof *p->steps);
    p->random = calloc((size_t)num_envs, sizeof *p->random);
    if (!p->position || !p->steps || !p->random || num_workers > MAX_THREADS) {
        cartpole_close(p);
        return NULL;
    }
    p->velocity = p->position + num_envs;
    p->angle = p->velocity + num_envs;
    p->rotation = p->angle + num_envs;
    for (int i = 0; i < num_envs; i++) p->random[i] = (uint64_t)i;
    /* Each worker has whole cache lines, also of the flags. Otherwise workers would wait for each other. */
    int chunks = (num_envs + CHUNK - 1) / CHUNK;
    for (int k = 0; k < num_workers; k++) {
        int last = CHUNK * (chunks * (k + 1) / num_workers);
        p->workers[k] = (Worker){p, CHUNK * (chunks * k / num_workers), last < num_envs ? last : num_envs, 0};
        if (pthread_create(&p->workers[k].thread, NULL, work, &p->workers[k])) {
            cartpole_close(p);
            return NULL;
        }
        p->num_workers++;
    }
    return p;
}
