"""One real master under the load of many clients and segments that are simulated: connections that speak the real protocols."""
