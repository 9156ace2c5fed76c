// A kfake cluster of one broker, as a process: kfake-server PORT [DATA-DIRECTORY].
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fail(err)
	}
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port)}
	if len(os.Args) > 2 {
		options = append(options, kfake.DataDir(os.Args[2]))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		fail(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	cluster.Close()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "kfake-server:", err)
	os.Exit(1)
}
